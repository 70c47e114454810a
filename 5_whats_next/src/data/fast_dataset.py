"""Chapter 2's samples, to the bit and in the same order, read as fast as the store allows.

Chapter 2 reads a window, waits, and reads the next one. Here TensorStore
(https://google.github.io/tensorstore) reads, and the waiting happens at the same time:

- All chunks of a batch are asked for at once, and each of them once, however many windows need it.
- ``batches_ahead``: the next batches are on their way while the model computes (look_ahead.py),
  and made ready in a thread.
- ``packed``: all variables of a chunk lie in one object, so that a window takes fewer requests.
- ``cache_mb``: decoded chunks stay in memory for the batches that come.
- ``disk_cache``: objects stay on the local disk, for the epochs and the runs that come.

Shapes: B samples, V variables, T months, H latitudes, W longitudes.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import zarr
from torch import Tensor
from torch.utils.data import get_worker_info

from src.data.cloud_errors import CloudError
from src.data.cloud_store import SILENCE, CheckedStore
from src.data.disk_cache import CachedSource, CacheFolder
from src.data.fast_source import Place, Reading, Source, wait_for
from src.data.fast_store import (
    count_requests,
    explain_tensorstore,
    key_value_store,
    open_arrays,
    packed_path,
    packed_rows,
    read_context,
)
from src.data.netcdf import AXES
from src.data.opening import STATISTICS, OpeningStore, expected_keys
from src.data.pytorch_dataset import Split
from src.data.statistics import normalise
from src.data.usecase_cloud_dataset import CloudDataset, Opened


class Started(NamedTuple):
    """A batch that was asked for."""

    values: np.ndarray  # (B, V, T, H, W)
    targets: list[np.ndarray]  # parts of it, and
    reading: Reading  # what will come into them


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
        packed: read a copy that holds all variables together, which pack_store.py makes: true or
            its name.
        disk_cache: folder on a local disk that keeps what was read, for the next epoch or run.
        disk_cache_gb: how much it may hold; what was not used for longest goes first.
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
        packed: bool | str = False,
        disk_cache: str | None = None,
        disk_cache_gb: float = 10.0,
    ) -> None:
        if batches_ahead < 0 or concurrency < 1 or cache_mb < 0 or disk_cache_gb <= 0:
            raise CloudError(
                f"data.dataset: batches_ahead {batches_ahead}, concurrency {concurrency}, cache_mb "
                f"{cache_mb:g}, disk_cache_gb {disk_cache_gb:g}; allowed: from 0, from 1, from 0, "
                "above 0"
            )
        self.batches_ahead, self.concurrency = batches_ahead, concurrency
        self.cache_mb, self.packed = cache_mb, packed
        self.disk_cache, self.disk_cache_gb = disk_cache, disk_cache_gb
        self._opening: dict[str, OpeningStore] = {}
        self._source: Source | None = None
        self._pending: dict[tuple[int, ...], Future[np.ndarray]] = {}
        self._pool: ThreadPoolExecutor | None = None
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

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {
            "_opening": {},
            "_source": None,
            "_pending": {},
            "_pool": None,
        }

    def store(self, url: str, **settings: Any) -> CheckedStore:
        """Opened in a few round trips; see opening.py."""
        names = [packed_path(self.packed)] if self.packed else self.wanted or []
        own = url == self.url
        months = self.train_months if url == self.statistics_url else None
        expected = expected_keys(names if own else [], months, AXES if own else [])
        self._opening[url] = OpeningStore(super().store(url, **settings), expected)
        return self._opening[url]

    @property
    def opened(self) -> Opened:
        """The store, and what TensorStore reads of it; each process opens them for itself."""
        if self._opened is None:
            try:
                found = super().opened
                _ = [found.statistics[name].values for name in STATISTICS]  # read together as well
                self._source = self.open_source([str(name) for name in found.fields.data_vars])
            except BaseException:
                self._opened = None
                raise
            finally:
                while self._opening:
                    self._opening.popitem()[1].finish()
        return super().opened  # refuses to be used in a fork

    @property
    def source(self) -> Source:
        """Where parts of the fields (V, T, H, W) come from."""
        _ = self.opened
        assert self._source
        return self._source

    def open_source(self, variables: Sequence[str]) -> Source:
        """Raises CloudError for a store that this reader cannot read."""
        group = zarr.open_group(self._opening[self.url], mode="r")
        context = read_context(self.concurrency, self.cache_mb, self.patience)
        place = key_value_store(f"{self.url}/", self.anonymous)
        names = [packed_path(self.packed)] if self.packed else variables
        arrays = open_arrays(group, names, place, context, self.url)
        rows = packed_rows(group[names[0]], variables, self.url) if self.packed else None
        source = Source(arrays, rows)
        if self.disk_cache:
            folder = CacheFolder(Path(self.disk_cache), self.disk_cache_gb * 1e9)
            patience, threads = self.patience + SILENCE, self.batches_ahead + 1
            source = CachedSource(source, self.url, folder, patience, threads)
        self.count(source)
        return source

    def prefetch(self, indices: Sequence[int]) -> None:
        """Start to read a batch that will be asked for."""
        if tuple(indices) not in self._pending:
            _ = self.opened  # not in a thread: warnings' filters, which opening sets, are for all
            self._pool = self._pool or ThreadPoolExecutor(self.batches_ahead + 1)
            self._pending[tuple(indices)] = self._pool.submit(self.load, indices)

    def forget(self) -> None:
        """Nobody will ask for what was to come."""
        self._pending.clear()

    def load(self, indices: Sequence[int]) -> np.ndarray:
        """The normalised values (B, V, T, H, W) of a batch, as soon as all of it has come."""
        values, targets, reading = self.start(indices)
        for target, part in zip(targets, self.result_of(reading), strict=True):
            target[...] = normalise(part, self.mean, self.std)
        return values

    def start(self, indices: Sequence[int]) -> Started:
        """Ask for all parts of a batch, without waiting."""
        values = np.empty((len(indices), len(self.variables), *self.window), np.float32)
        targets, places = [], []
        for sample, index in zip(values, indices, strict=True):
            for columns, place in self.parts(self.slices(index, self.opened.origin)):
                targets.append(sample[..., columns])
                places.append(place)
        return Started(values, targets, self.source.read(places))

    def parts(self, place: Place) -> list[tuple[slice, Place]]:
        """The one or two parts, with the columns that they fill, of a place round the globe."""
        t, y, x = place
        edge = self.opened.origin[2] + self.opened.fields.sizes["lon"]
        if x.stop <= edge:
            return [(slice(None), place)]
        inside = edge - x.start
        return [  # round the globe, where the region begins at 0
            (slice(0, inside), (t, y, slice(x.start, edge))),
            (slice(inside, None), (t, y, slice(0, x.stop - edge))),
        ]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, int]]:
        self.prefetch(indices)  # unless it was
        try:
            values = self._pending.pop(tuple(indices)).result()
        except CloudError:
            self.forget()
            raise
        return [(torch.from_numpy(x), index) for x, index in zip(values, indices, strict=True)]

    def result_of(self, reading: Reading) -> list[np.ndarray]:
        """Its parts. Raises CloudError if they do not come."""
        try:
            return wait_for(reading, self.patience + SILENCE)
        except (ValueError, TimeoutError) as error:
            raise CloudError(f"{self.url}: {explain_tensorstore(error, self.url)}") from error
        finally:
            self.count(self.source)

    def count(self, source: Source) -> None:
        """Add this process's requests to its row of the counters."""
        worker = get_worker_info()
        count_requests(self.counts[1 + worker.id if worker else 0].numpy(), source.driver)
