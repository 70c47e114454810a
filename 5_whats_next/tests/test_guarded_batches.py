"""A batch that is not the one of its step stops the run; a signal ends the wait for one."""

import signal
import threading

import pytest
import torch
from src.data.guarded_batches import GuardedBatches, InterruptibleLoader
from src.lightning_ranks import SharedError
from src.patient_interrupt import INTERRUPT

from tests.lightning_runs import train_lightning


def batches(step: int) -> GuardedBatches:
    return GuardedBatches(34, 0, 8, 0, 1, step=lambda: step)


@pytest.mark.parametrize("step", [0, 3, 5])
def test_right_batches_pass(step):
    guard = batches(step)
    for position, batch in enumerate(guard, step):
        guard.check(torch.tensor(batch), position)


def test_another_position_is_found():
    """As after a resume that begins an epoch anew, or leaves a batch out."""
    guard = batches(5)
    batch = torch.tensor(next(iter(guard)))
    with pytest.raises(SharedError, match="step 6 got another batch than it asked for"):
        guard.check(batch, 6)


def test_other_samples_are_found():
    guard = batches(5)
    batch = torch.tensor(next(iter(guard)))
    with pytest.raises(SharedError, match="repeats or leaves out samples"):
        guard.check(batch.flip(0), 5)


def test_a_loader_that_repeats_stops_the_run(monkeypatch, tmp_path):
    """A fault in the way from the sampler to the model: the third batch comes twice."""

    def repeating(self):
        given = list(original(self))
        yield from [*given[:3], given[2], *given[3:]]

    original = InterruptibleLoader.__iter__
    monkeypatch.setattr(InterruptibleLoader, "__iter__", repeating)
    with pytest.raises(SharedError, match="step 3 got another batch"):
        train_lightning(monkeypatch, tmp_path)


class Never(torch.utils.data.Dataset):
    """Its second sample does not arrive."""

    def __init__(self) -> None:
        self.waits = threading.Event()

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        if index == 1:
            signal.raise_signal(signal.SIGTERM)
            assert not self.waits.wait(60), "the wait did not end"
        return index


def test_a_signal_ends_the_wait():
    with INTERRUPT:
        INTERRUPT.signal_number = 0
        found = list(InterruptibleLoader(Never(), batch_size=1))
    assert INTERRUPT.signal_number == signal.SIGTERM
    INTERRUPT.signal_number = 0
    assert len(found) == 2
    assert found[1] == ()
