"""What the small scripts share."""

from collections.abc import Callable
from timeit import timeit


def timed(action: str, call: Callable[[], object]) -> None:
    """Call it once, and print the action with its duration in milliseconds."""
    print(f"{action:<56} {1e3 * timeit(call, number=1):8.1f} ms")
