"""The timer: every second is counted once, for the part in which it passed."""

from typing import Any

import lightning as L
import pytest
import step_timer
import torch
from src.lightning_settings import quiet
from step_timer import PARTS, StepTimer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

COST = {"data": 3.0, "forward": 5.0, "backward": 7.0, "optimizer": 2.0, "overhead": 1.0}


class Clock(step_timer.Moments):
    """Stands still until somebody works."""

    value = 0.0

    def now(self) -> float:
        return Clock.value

    @staticmethod
    def work(part: str) -> None:
        Clock.value += COST[part]


class Samples(Dataset):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Tensor:
        Clock.work("data")
        return torch.ones(1)


class Endless(IterableDataset):
    """Without a length: Lightning asks it for a batch more than it uses."""

    def __iter__(self) -> Any:
        for _ in range(6):
            Clock.work("data")
            yield torch.ones(1)


class SlowGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        Clock.work("backward")
        return gradient


class SlowSGD(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        Clock.work("optimizer")
        return loss


class Module(L.LightningModule):
    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.automatic_optimization = not by_hand
        self.weight = torch.nn.Parameter(torch.ones(1))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor | None:
        Clock.work("forward")
        loss = SlowGradient.apply(self.weight * batch).sum()
        if self.automatic_optimization:
            return loss
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return None

    def configure_optimizers(self) -> Any:
        return SlowSGD(self.parameters(), 0.1)

    def on_train_batch_end(self, *_: Any) -> None:
        Clock.work("overhead")

    def on_train_epoch_end(self) -> None:
        Clock.value += 1000  # belongs to no batch


def timed(dataset: Any, module: Module, monkeypatch: Any) -> StepTimer:
    quiet()
    monkeypatch.setitem(step_timer.MOMENTS, "cpu", Clock)
    timer = StepTimer("cpu")
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=2,
        profiler=timer,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(dataset, batch_size=1))
    return timer


@pytest.mark.parametrize("by_hand", [False, True])
def test_each_part_has_its_own_time(monkeypatch, by_hand):
    """Also when the module itself calls backward, inside of its step."""
    timer = timed(Samples(), Module(by_hand), monkeypatch)
    assert [(batch.epoch, batch.number) for batch in timer.batches] == [
        (epoch, number) for epoch in range(2) for number in range(6)
    ]
    for batch in timer.batches:
        assert batch.seconds == dict.fromkeys(PARTS, 0.0) | COST
        assert batch.total == sum(COST.values())


def test_loader_without_a_length(monkeypatch):
    """Its batches are fetched one ahead; nothing is lost, and nothing counts twice."""
    batches = timed(Endless(), Module(False), monkeypatch).batches
    assert len(batches) == 12
    for part in ("forward", "backward", "optimizer"):
        assert {batch.seconds[part] for batch in batches} == {COST[part]}
    for epoch, fetched in enumerate((5, 6)):  # the very first one comes before the first epoch
        own = [batch.seconds["data"] for batch in batches if batch.epoch == epoch]
        assert sum(own) == fetched * COST["data"]


def test_parts_are_lightnings_own_names(monkeypatch):
    """An action that Lightning calls otherwise tomorrow would silently become overhead."""
    seen = []
    start = StepTimer.start

    def listen(self: StepTimer, name: str) -> None:
        seen.append(name)
        start(self, name)

    monkeypatch.setattr(StepTimer, "start", listen)
    timed(Samples(), Module(False), monkeypatch)
    assert {step_timer.part_of(name) for name in seen} - {None} == set(step_timer.PART_OF.values())
    for hook in (step_timer.BEFORE_BACKWARD, step_timer.AFTER_BACKWARD):
        assert any(step_timer.is_hook(name, hook) for name in seen)
    assert "run_training_epoch" in seen


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_time_on_a_gpu_is_that_of_its_work():
    """The call returns at once; the moments tell how long the matrix products took."""
    moments = step_timer.CudaMoments()
    matrix = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    host = step_timer.Moments()
    before, start = host.now(), moments.now()
    for _ in range(50):
        matrix = matrix @ matrix
    called, end = host.now(), moments.now()
    moments.wait()
    assert moments.seconds(start, end) > 5 * (called - before)
