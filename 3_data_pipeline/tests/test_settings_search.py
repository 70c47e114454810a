"""The search: which settings win, which are given up, and which are tried at all."""

import pytest
import settings_search as search


def runs(*speeds: float, busy: float = 0.5) -> list[dict[str, float]]:
    return [{"samples_per_second": speed, "busy": busy} for speed in speeds]


FAILED = {"error": "MemoryError"}


@pytest.mark.parametrize(
    ("own", "rival", "cheaper", "taken"),
    [
        (runs(100, 101, 102), runs(120, 121, 122), False, True),
        (runs(100, 120, 90), runs(120, 121, 122), False, False),  # less than the best's repeats
        (runs(100, 101, 102), runs(110, 121, 140), False, False),  # less than its own
        (runs(100, 100, 100), runs(101, 101, 101), False, False),  # less than matters
        (runs(100, 100, 100), runs(100, 100, 100), False, False),  # ties go to the cheaper
        (runs(100, 100, 100), runs(100, 100, 100), True, True),
        (runs(100, 100, 100), runs(99, 99, 99), True, True),
        (runs(100, 100, 100), runs(90, 90, 90), True, False),
        (runs(100, 130, 100), runs(90, 90, 90), True, False),  # noise is no excuse to get slower
        (runs(100, 101, 102), [*runs(150, 150), FAILED], False, False),
        (runs(100, 101, 102), [*runs(150, 150), FAILED], True, False),
        (runs(100, 101, 102), runs(150), False, False),  # given up after its first run
    ],
)
def test_only_a_gain_above_the_spread_counts(own, rival, cheaper, taken):
    assert search.wins(own, rival, cheaper) == taken


def test_hopeless_rivals_are_not_repeated():
    own = runs(100, 102)
    assert search.stays_in(own, [], False)
    assert not search.stays_in(runs(100, 102, busy=0.99), [], False)  # the model does not wait
    assert search.stays_in(runs(100, 102, busy=0.99), [], True)
    assert not search.stays_in(runs(100, 400, busy=0.5), [], False)  # nothing that would show
    assert search.stays_in(own, runs(110), False)
    assert not search.stays_in(own, runs(99), False)
    assert search.stays_in(own, runs(100), True)
    assert not search.stays_in(own, runs(90), True)
    assert not search.stays_in(own, [FAILED], True)


def test_memory_bounds_what_is_tried(monkeypatch):
    monkeypatch.setattr(search, "CORES", 4)
    start = {"num_workers": 0, "cache_mb": 64.0, "batches_ahead": 4, "prefetch_factor": 2}

    def near(settings, peak_mb, memory_mb):
        found = search.rivals(settings, peak_mb, memory_mb)
        return {(key, rival[key]) for key, rival in found}

    all_of_it = {("num_workers", 1), ("num_workers", 4), ("cache_mb", 256), ("cache_mb", 0)}
    assert near(start, 700, 1e5) == all_of_it | {("batches_ahead", 8)}
    assert near(start, 700, 1000) == all_of_it - {("num_workers", 4)} | {("batches_ahead", 8)}
    assert near(start, 700, 100) == {("cache_mb", 0), ("batches_ahead", 8)}
    busy = start | {"num_workers": 2, "cache_mb": 0.0}
    expected = {("num_workers", 4), ("num_workers", 1), ("cache_mb", 64), ("prefetch_factor", 4)}
    assert near(busy, 2100, 1e5) == expected
    assert near(start | {"num_workers": 16}, 700, 1e6) >= {("num_workers", 8)}
    assert ("num_workers", 32) not in near(start | {"num_workers": 16}, 700, 1e6)
