"""A batch sampler that announces each batch to the dataset some batches before its use."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import Sampler


class LookAhead(Sampler[list[int]]):
    """Another sampler's batches, in its order. For a DataLoader without workers.

    Args:
        batches: the other sampler.
        dataset: has ``prefetch(batch)``, which does not wait, ``forget_requests()``, and the number
            ``batches_ahead``. Its ``__getitems__`` takes what ``prefetch`` has begun.
    """

    def __init__(self, batches: Iterable[list[int]], dataset: Any) -> None:
        self.batches = batches
        self.dataset = dataset

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the batches, while the dataset loads those that follow."""
        self.dataset.forget_requests()  # the last epoch may have been left early
        announced: deque[list[int]] = deque()
        ahead = 0
        for batch in self.batches:
            self.dataset.prefetch(batch)
            announced.append(batch)
            # If all were asked for at once, the first would come last. So it is asked for alone,
            # and after it 1, 3, 7, … batches ahead of the one in use.
            if len(announced) > ahead:
                yield announced.popleft()
                ahead = min(2 * ahead + 1, self.dataset.batches_ahead)
        yield from announced

    def __len__(self) -> int:
        """The number of batches."""
        return len(self.batches)  # type: ignore[arg-type]  # a Sampler need not have a length
