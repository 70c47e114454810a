"""What a trace of PyTorch's profiler says, without a browser.

  uv run python trace_summary.py output/profiler/cli_config/profiler_logs/*.pt.trace.json

The operators that take most time, without what they call; how long the device had nothing to do,
and what the program did then; and how far copies ran beside computations. Without a GPU the device
is the thread that calls the operators, and its gaps are Python.
"""

import argparse
import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from src.errors import UserError, one_line_errors

KERNELS, COPIES = {"kernel", "gpu_memset"}, {"gpu_memcpy"}
OPERATORS = {"cpu_op"}
Interval = tuple[float, float]


class Event(NamedTuple):
    """Something that lasted; times in microseconds."""

    name: str
    category: str
    thread: tuple[Any, Any]  # process and thread, or device and stream
    start: float
    end: float


def read_trace(path: Path) -> list[Event]:
    """The events of a trace that have a length. Raises UserError if it is none."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        events = json.loads(content)["traceEvents"]
        found = [
            Event(e["name"], e.get("cat", ""), (e["pid"], e["tid"]), e["ts"], e["ts"] + e["dur"])
            for e in events
            if e.get("ph") == "X"
        ]
    except (ValueError, KeyError, TypeError, EOFError, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is no trace of PyTorch's profiler: {error!r}") from error
    if not any(event.category in OPERATORS for event in found):
        raise UserError(f"{path} has no operator in it: was anything traced?")
    return found


def self_times(events: Iterable[Event]) -> dict[str, tuple[float, int]]:
    """Microseconds without what an event itself calls, and the number of calls, by name."""
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    threads: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        threads[event.thread].append(event)
    for own in threads.values():
        open_events: list[Event] = []
        for event in sorted(own, key=lambda e: (e.start, -e.end)):
            while open_events and open_events[-1].end <= event.start:
                open_events.pop()
            length = event.end - event.start
            found[event.name][0] += length
            found[event.name][1] += 1
            if open_events:
                found[open_events[-1].name][0] -= length
            open_events.append(event)
    return {name: (time, int(calls)) for name, (time, calls) in found.items()}


def union(events: Iterable[Event]) -> list[Interval]:
    """When at least one of the events was under way."""
    found: list[Interval] = []
    for start, end in sorted((event.start, event.end) for event in events):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def length(intervals: Iterable[Interval]) -> float:
    return sum(end - start for start, end in intervals)


def overlap(one: Sequence[Interval], other: Sequence[Interval]) -> float:
    """Microseconds in which both were under way."""
    total, i, j = 0.0, 0, 0
    while i < len(one) and j < len(other):
        total += max(0.0, min(one[i][1], other[j][1]) - max(one[i][0], other[j][0]))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return total


def meanwhile(events: Sequence[Event], gap: Interval) -> str:
    """What the program did in a gap: the shortest of its spans that covers it."""
    around = [
        event
        for event in events
        if event.category not in KERNELS | COPIES
        and event.start <= gap[0] + 1
        and event.end >= gap[1] - 1
    ]
    return min(around, key=lambda e: e.end - e.start).name if around else "nothing that was traced"


def summarise_trace(path: Path, rows: int = 10, gaps: int = 5) -> str:
    """The summary as text.

    Args:
        path: the trace, also compressed with gzip.
        rows: operators to show.
        gaps: of the device's gaps, how many to show.
    """
    events = read_trace(path)
    on_gpu = [event for event in events if event.category in KERNELS | COPIES]
    operators = [event for event in events if event.category in OPERATORS]
    if on_gpu:
        shown, busy, device = on_gpu, union(on_gpu), "GPU"
    else:
        # Autograd computes gradients in a thread of its own; together they are the device.
        shown, busy, device = operators, union(operators), "operators"
    span = busy[-1][1] - busy[0][0]
    lines = [f"{device}: busy {length(busy) / span:.0%} of {span / 1e3:.1f} ms"]
    lines.append(f"{'self ms':>10}{'share':>8}{'calls':>8}  name")
    times = sorted(self_times(shown).items(), key=lambda item: -item[1][0])
    whole = sum(time for _, (time, _) in times)
    for name, (time, calls) in times[:rows]:
        lines.append(f"{time / 1e3:>10.2f}{time / whole:>8.1%}{calls:>8}  {name[:80]}")
    idle = sorted(((a[1], b[0]) for a, b in pairwise(busy)), key=lambda gap: gap[0] - gap[1])
    lines.append(f"longest gaps, of {len(idle)}:")
    for gap in idle[:gaps]:
        lines.append(f"{(gap[1] - gap[0]) / 1e3:>10.2f} ms  in {meanwhile(events, gap)[:80]}")
    copies = union(event for event in on_gpu if event.category in COPIES)
    if copies:
        both = overlap(copies, union(event for event in on_gpu if event.category in KERNELS))
        share = both / length(copies)
        lines.append(f"copies: {length(copies) / 1e3:.2f} ms, {share:.0%} of it beside kernels")
    return "\n".join(lines)


def main() -> None:
    """Read the command line and summarise the traces."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", nargs="+", type=Path, help="files *.pt.trace.json, also .gz")
    parser.add_argument("--rows", type=int, default=10, help="operators to show")
    parser.add_argument("--gaps", type=int, default=5, help="gaps of the device to show")
    arguments = parser.parse_args()
    for path in arguments.traces:
        if not path.is_file():
            raise UserError(f"traces: there is no file {path}")
        print(f"{path.name}\n{summarise_trace(path, arguments.rows, arguments.gaps)}")


if __name__ == "__main__":
    with one_line_errors():
        main()
        sys.exit()
