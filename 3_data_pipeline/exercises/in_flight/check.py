"""Does the model wait with so many requests under way, and with one fewer?"""

from types import ModuleType
from typing import NamedTuple

STEPS = 80  # of which the second half counts: by then all that was slow to begin has begun


class Case(NamedTuple):
    """What the exercise is given."""

    batch_size: int
    train_step_time: float
    requests: float
    kb: float
    delay_ms: float
    mb_per_s: float


CASES = {
    "small chunks": Case(32, 0.1, 12, 120, 30, 70),
    "chunks of 1 MB": Case(16, 0.25, 1, 1000, 30, 80),
    "far away": Case(32, 0.1, 4, 65.5, 100, 70),
    "next to the store": Case(16, 0.2, 0.25, 40, 0.3, 70),  # many windows lie in one chunk
}
TOO_MUCH = Case(32, 0.1, 4, 500, 30, 100)


def waits(number: int, case: Case) -> tuple[int, float]:
    """With ``number`` requests under way all the time: in how many steps the model waits, and how
    much of the time it is busy.
    """
    of_a_batch = round(case.batch_size * case.requests)
    transfer = case.kb / case.requests / case.mb_per_s / 1e3
    ends: list[float] = []  # when the last byte of each request is there
    for request in range(of_a_batch * STEPS):
        sent = ends[request - number] if request >= number else 0.0
        free = ends[-1] if ends else 0.0
        ends.append(max(sent + case.delay_ms / 1e3, free) + transfer)
    ready = ends[of_a_batch - 1 :: of_a_batch]
    now, waited = ready[0], [0.0]
    for there in ready[1:]:
        now += case.train_step_time
        waited.append(max(0.0, there - now))
        now += waited[-1]
    late = waited[STEPS // 2 :]
    computing = len(late) * case.train_step_time
    return sum(wait > 1e-9 for wait in late), computing / (computing + sum(late))


def check(answer: ModuleType) -> None:
    """Raises AssertionError with what is wrong."""
    for name, case in CASES.items():
        found = answer.in_flight(*case)
        assert found is not None, (
            f"{name}: None, and the link is fast enough: a batch is "
            f"{case.batch_size * case.kb / 1e3:.1f} MB, and in a step "
            f"{case.mb_per_s * case.train_step_time:.1f} MB come through it"
        )
        assert found % 1 == 0, f"{name}: {found:.2f} requests is no whole number"
        number = int(found)
        assert number > 0, f"{name}: with {number} requests under way nothing ever comes"
        waited, busy = waits(number, case)
        assert not waited, (
            f"{name}: with {number} requests under way the model waits in {waited} of "
            f"{STEPS - STEPS // 2} steps, and is busy {busy:.1%} of the time"
        )
        assert number == 1 or waits(number - 1, case)[0], (
            f"{name}: {number} requests under way, and one fewer keeps the model as busy: more "
            "only take memory, and the server's patience"
        )
    found = answer.in_flight(*TOO_MUCH)
    needed = TOO_MUCH.batch_size * TOO_MUCH.kb / 1e3 / TOO_MUCH.train_step_time
    assert found is None, (
        f"the model uses {needed:.0f} MB/s, and {TOO_MUCH.mb_per_s} come: no number of requests "
        f"helps, and the answer is {found}"
    )
