"""Chapter 2's samples, to the bit and in the same order, read as fast as the store allows.

Chapter 2 reads a window, waits, and reads the next one. Here TensorStore
(https://google.github.io/tensorstore) reads, and the waiting happens at the same time:

- All chunks of a batch are asked for at once, and each of them once, however many windows need it.
- ``batches_ahead``: the next batches are on their way while the model computes (look_ahead.py).
- ``packed``: all variables of a chunk lie in one object, so that a window takes fewer requests.
- ``cache_mb``: decoded chunks stay in memory for the batches that come.

Shapes: B samples, V variables, T months, H latitudes, W longitudes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorstore as ts
import torch
import zarr
from torch import Tensor
from torch.utils.data import get_worker_info

from src.data.cloud_errors import CloudError
from src.data.cloud_store import SILENCE, open_store
from src.data.fast_store import (
    PACKED,
    count_requests,
    explain_tensorstore,
    key_value_store,
    open_array,
    read_context,
)
from src.data.pytorch_dataset import Split
from src.data.statistics import normalise
from src.data.usecase_cloud_dataset import CloudDataset


class Pending(NamedTuple):
    """A batch on its way."""

    values: np.ndarray  # (B, V, T, H, W)
    parts: list[tuple[np.ndarray, ts.Future]]  # which part of it will come from where


class FastDataset(CloudDataset):
    """Windows of the variables of a Zarr store, read a batch at a time.

    Args:
        split: which months the windows come from.
        url: the store, as for CloudDataset, whose arguments these are but for the last four.
        variables: which of the store's variables; null takes all, in order of the alphabet.
        window: months, latitudes and longitudes of a sample.
        train_stride: steps between neighbouring training windows.
        val_stride: the same for validation.
        train_months: first month and first month after the end of the training period.
        val_months: the same for validation; at least one window away from the training months.
        wrap_longitude: the grid goes round the globe, so windows may cross its edge.
        region: south, north, west, east that the windows lie between, in degrees; null: everywhere.
        statistics_url: where the statistics are, if not in the store.
        anonymous: ask for public data without credentials.
        patience: seconds to go on trying when a request fails.
        batches_ahead: batches that are read while the model computes; 0 reads when asked.
        concurrency: requests in flight at the same time.
        cache_mb: megabytes of decoded chunks that stay in memory, in each process.
        packed: read the copy that holds all variables together; pack_store.py makes it.
    """

    def __init__(
        self,
        split: Split,
        url: str = "s3://embedded/ocean.zarr",
        variables: list[str] | None = None,
        window: tuple[int, int, int] = (12, 16, 32),
        train_stride: tuple[int, int, int] = (1, 1, 10),
        val_stride: tuple[int, int, int] = (12, 2, 16),
        train_months: tuple[int, int] = (0, 30),
        val_months: tuple[int, int] = (42, 54),
        wrap_longitude: bool = True,
        region: tuple[float, float, float, float] | None = None,
        statistics_url: str | None = None,
        anonymous: bool = False,
        patience: float = 60.0,
        batches_ahead: int = 4,
        concurrency: int = 64,
        cache_mb: float = 0.0,
        packed: bool = False,
    ) -> None:
        if batches_ahead < 0 or concurrency < 1 or cache_mb < 0:
            raise CloudError(
                f"data.dataset: batches_ahead {batches_ahead}, concurrency {concurrency}, cache_mb "
                f"{cache_mb:g}; allowed: from 0, from 1, from 0"
            )
        self.batches_ahead, self.concurrency = batches_ahead, concurrency
        self.cache_mb, self.packed = cache_mb, packed
        self._arrays: list[ts.TensorStore] = []
        self._pending: dict[tuple[int, ...], Pending] = {}
        super().__init__(
            split,
            url=url,
            variables=variables,
            window=window,
            train_stride=train_stride,
            val_stride=val_stride,
            train_months=train_months,
            val_months=val_months,
            wrap_longitude=wrap_longitude,
            region=region,
            statistics_url=statistics_url,
            anonymous=anonymous,
            patience=patience,
        )
        _ = self.arrays  # a store that this reader cannot read is an error now, and not later

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_arrays": [], "_pending": {}}

    @property
    def arrays(self) -> list[ts.TensorStore]:
        """One for each variable, or one for all; each process opens them for itself."""
        _ = self.opened  # refuses to be used in a fork
        if not self._arrays:
            group = zarr.open_group(open_store(self.url, self.anonymous), mode="r")
            context = read_context(self.concurrency, self.cache_mb, self.patience)
            for name in [PACKED] if self.packed else self.variables:
                place = key_value_store(f"{self.url}/{name}/", self.anonymous)
                self._arrays.append(open_array(group, name, place, context, self.url))
            if self.packed:
                self._arrays = [self.select_variables(group, self._arrays[0])]
        return self._arrays

    def select_variables(self, group: zarr.Group, array: ts.TensorStore) -> ts.TensorStore:
        """The rows (V, ...) of the packed array, in the order of the configuration."""
        found = group[PACKED].attrs
        there = list(found.get("variables", []))  # type: ignore[arg-type]
        missing = [name for name in self.variables if name not in there]
        if missing or not found.get("complete"):
            what = f"has no {', '.join(missing)}" if missing else "is not finished"
            raise CloudError(f"{self.url}: its packed copy {what}; run pack_store.py again")
        rows = [there.index(name) for name in self.variables]
        return array if rows == list(range(len(there))) else array[rows]

    def prefetch(self, indices: Sequence[int]) -> None:
        """Start to read a batch that will be asked for."""
        if tuple(indices) not in self._pending:
            self._pending[tuple(indices)] = self.start(indices)

    def forget(self) -> None:
        """Nobody will ask for what was to come."""
        self._pending.clear()

    def start(self, indices: Sequence[int]) -> Pending:
        """Ask for all parts of a batch, without waiting."""
        shape = (len(indices), len(self.variables), *self.window)
        pending = Pending(np.empty(shape, np.float32), [])
        origin = self.opened.origin
        east = origin[2] + self.opened.fields.sizes["lon"]
        arrays = self.arrays
        with ts.Batch() as batch:  # the requests leave when the block ends
            for sample, index in zip(pending.values, indices, strict=True):
                t, y, x = self.slices(index, origin)
                inside = min(x.stop, east) - x.start
                places = [(slice(0, inside), slice(x.start, x.start + inside))]
                if x.stop > east:  # round the globe, where the region begins at 0
                    places.append((slice(inside, None), slice(0, x.stop - east)))
                for to, columns in places:
                    if self.packed:
                        part = arrays[0][:, t, y, columns].read(batch=batch)
                        pending.parts.append((sample[..., to], part))
                        continue
                    for field, array in zip(sample, arrays, strict=True):
                        part = array[t, y, columns].read(batch=batch)
                        pending.parts.append((field[..., to], part))
        return pending

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, int]]:
        self.prefetch(indices)  # unless it was
        values, parts = self._pending.pop(tuple(indices))
        worker = get_worker_info()
        try:
            for target, part in parts:
                target[...] = part.result(timeout=self.patience + SILENCE)
        except (ValueError, TimeoutError) as error:
            self.forget()
            raise CloudError(f"{self.url}: {explain_tensorstore(error, self.url)}") from error
        finally:
            count_requests(self.counts[1 + worker.id if worker else 0].numpy())
        values = normalise(values, self.mean, self.std)
        return [(torch.from_numpy(x), index) for x, index in zip(values, indices, strict=True)]
