"""The training loader's guard: each batch is the one that the step asks for, and waits can end."""

from collections import deque
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from src.data.lightning_sampler import TrainBatches
from src.lightning_ranks import SharedError
from src.patient_interrupt import INTERRUPT, WaitEnded


class GuardedBatches(TrainBatches):
    """Notes the position of every batch that it announces, and compares what arrives.

    A loader that repeats or leaves out batches after a resume changes the training without a word.
    Known ways: https://github.com/Lightning-AI/pytorch-lightning/issues/21938 and its relatives.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.announced: deque[tuple[int, list[int]]] = deque()

    def __iter__(self) -> Iterator[list[int]]:
        self.announced = deque()
        position = self.step()
        for batch in super().__iter__():
            self.announced.append((position, batch))
            position += 1
            yield batch

    def check(self, index: Tensor, step: int) -> None:
        """Raise SharedError unless the batch's samples are those of this step.

        Args:
            index: the samples' numbers (B,), still on the CPU: on a GPU this would have to wait.
            step: optimiser steps done.
        """
        position, batch = self.announced.popleft() if self.announced else (-1, [])
        if position != step or index.tolist() != batch:
            raise SharedError(
                f"step {step} got another batch than it asked for (position {position}, samples "
                f"{index.tolist()[:4]}...): the loader repeats or leaves out samples"
            )


class InterruptibleLoader(DataLoader):
    """A DataLoader whose wait for a batch ends at a signal; it then gives an empty batch.

    The callback Preemption stops the run before anybody computes with it.
    """

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        batches = super().__iter__()
        while True:
            try:
                with INTERRUPT.waiting():
                    batch = next(batches)
            except StopIteration:
                return
            except WaitEnded:
                batch = ()
            yield batch
            if batch == ():
                return
