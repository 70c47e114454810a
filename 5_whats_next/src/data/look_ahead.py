"""Tells a dataset which batches come next, so that it can read them while the model computes."""

from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, Dataset, Sampler


class LookAhead(Sampler[list[int]]):
    """The batches of another sampler; the dataset hears of each before it is needed.

    A DataLoader without workers asks for a batch when the model is ready for it. Its dataset could
    have read it by then, if it had known.

    Args:
        batches: the sampler.
        dataset: has ``prefetch`` and ``forget``, and says how many ``batches_ahead`` it wants.
    """

    def __init__(self, batches: Sampler[list[int]], dataset: Any) -> None:
        self.batches, self.dataset = batches, dataset

    def __iter__(self) -> Iterator[list[int]]:
        self.dataset.forget()  # an epoch may end early
        coming: deque[list[int]] = deque()
        for batch in self.batches:
            self.dataset.prefetch(batch)
            coming.append(batch)
            if len(coming) > self.dataset.batches_ahead:
                yield coming.popleft()
        yield from coming

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]


def look_ahead(
    batches: Sampler[list[int]], dataset: Dataset, num_workers: int
) -> Sampler[list[int]]:
    """The same batches; with workers, which are ahead themselves, and for other datasets as is."""
    if num_workers or not getattr(dataset, "batches_ahead", 0):
        return batches
    return LookAhead(batches, dataset)


def batches_of(
    sampler: Sampler[int], batch_size: int, dataset: Dataset, num_workers: int, drop_last: bool
) -> dict[str, Any]:
    """The arguments of a DataLoader that cuts a sampler's order into batches."""
    if num_workers or not getattr(dataset, "batches_ahead", 0):
        return {"batch_size": batch_size, "sampler": sampler, "drop_last": drop_last}
    return {"batch_sampler": LookAhead(BatchSampler(sampler, batch_size, drop_last), dataset)}
