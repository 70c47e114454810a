"""Is the order a permutation, a function of (seed, epoch), and can it begin anywhere?"""

from types import ModuleType


def check(answer: ModuleType) -> None:
    """Raises AssertionError with what is wrong."""

    def epoch_of(seed: int, epoch: int, done: int = 0) -> list[list[int]]:
        return [list(batch) for batch in answer.batches(35, 8, seed, epoch, done)]

    first = epoch_of(0, 0)
    sizes = [len(batch) for batch in first]
    assert sizes == [8, 8, 8, 8], f"batches of {sizes}, and not four of 8"
    flat = [index for batch in first for index in batch]
    assert len(set(flat)) == 32, "a sample comes twice in one epoch"
    assert set(flat) <= set(range(35)), "a sample comes that does not exist"
    assert flat != sorted(flat), "the samples are not shuffled"
    epoch_of(0, 1)  # what lies between must not matter
    assert epoch_of(0, 0) == first, (
        "epoch 0 has another order the second time: it depends on what was drawn before"
    )
    assert epoch_of(0, 1) != first, "epochs 0 and 1 have the same order"
    assert epoch_of(1, 0) != first, "seeds 0 and 1 have the same order"
    other = epoch_of(1, 0)
    assert other != epoch_of(0, 1), "seed 1, epoch 0 is seed 0, epoch 1: a sum mixes them up"
    rest = epoch_of(0, 0, done=3)
    assert rest == first[3:], (
        f"after 3 steps {len(rest)} batches come, and not the one that is left: a resumed run "
        "would train on other samples"
    )
    assert epoch_of(0, 0, done=4) == [], "after the last step something comes nevertheless"
