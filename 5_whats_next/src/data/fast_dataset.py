"""CloudDataset's samples, to the bit and in the same order, read as fast as the store allows."""

# TensorStore (https://google.github.io/tensorstore) reads Zarr in C++. Its read() and write()
# return a future at once; result() waits. So all chunks of several batches are on their way while
# the model computes, and a chunk that two of their windows touch is asked for once.

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorstore as ts
import torch
from dask.system import CPU_COUNT
from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from src.data.pytorch_dataset import Split
from src.data.statistics import grid_of
from src.data.store import AXES, open_lazily, open_store
from src.data.tensorstore_arrays import on_grid, open_arrays, shared_context, unpack
from src.data.usecase_cloud_dataset import CloudDataset
from src.run.errors import UserError


class FastDataset(CloudDataset):
    """Windows of a Zarr store, a batch at a time, several batches ahead of the training.

    Args:
        batches_ahead: batches that are on their way while the model computes.
        concurrency: requests that are on their way at the same time.
        cache_mb: megabytes of decoded chunks that stay in memory.
        packed: read the copy with all variables in each chunk, which build_store.py pack makes. It
            stays as it is when values of the store are corrected: run pack again then.
        settings: those of CloudDataset.

    Raises:
        UserError: the variables have several types; there is no packed copy of this grid;
            a store with shards and a cache, with which TensorStore's reads ended in OUT_OF_RANGE.
    """

    def __init__(
        self,
        split: Split,
        batches_ahead: NonNegativeInt = 16,
        concurrency: PositiveInt = 256,
        cache_mb: NonNegativeFloat = 0.0,
        packed: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(split, dask="none", **settings)
        self.batches_ahead = batches_ahead
        self.concurrency = concurrency
        self.cache_mb = cache_mb
        self.packed = packed
        # The batches under way: where their values will be, and what to wait for.
        self.requests: dict[tuple[int, ...], tuple[np.ndarray, list[Any]]] = {}
        self.opened: ts.TensorStore | None = None
        # Seconds of waiting and of decoding, for LoaderReport. Workers add to the same memory,
        # without a lock: rarely, a batch is lost from the count.
        self.seconds = torch.zeros(2, dtype=torch.float64).share_memory_()

        # How each variable is stored: its array, type, packing, axes, level (store.select).
        if packed:
            self.use_packed_copy()
        self.encodings = [self.lazy_fields[name].encoding for name in self.variables]
        # In the processor's byte order, whatever the store's: TensorStore writes no other.
        self.dtype = self.encodings[0]["dtype"].newbyteorder("=")
        if len({encoding["dtype"] for encoding in self.encodings}) > 1:
            raise UserError(
                f"{self.url}: the variables have several types; use CloudDataset"
            )
        sizes = []  # of a chunk, by axis
        for encoding in self.encodings:
            sizes.append(dict(zip(encoding["axes"], encoding["chunks"], strict=True)))
        # Times, latitudes, longitudes; where variables differ, the largest.
        self.chunk = tuple(max(size[axis] for size in sizes) for axis in AXES)
        # How many levels (of a packed copy: variables) a chunk holds, by its array and its number
        # along their axis. Variables that lie in one chunk share an entry.
        self.levels_in_chunk: dict[tuple[str, int], int] = {}
        for encoding, size in zip(self.encodings, sizes, strict=True):
            num_levels = size.get("level", 1)
            number = (encoding["level"] or 0) // num_levels
            self.levels_in_chunk[encoding["array"], number] = num_levels
        self.level_bytes = math.prod(self.chunk) * self.dtype.itemsize
        # Along each axis. The last one may reach beyond the edge, and is decoded whole.
        self.num_chunks = [
            math.ceil(self.lazy_fields.sizes[axis] / size)
            for axis, size in zip(AXES, self.chunk, strict=True)
        ]
        self.has_shards = any(encoding.get("shards") for encoding in self.encodings)

    def use_packed_copy(self) -> None:
        """Read the copy of build_store.py pack, where the variables are levels of one array."""
        store = open_store(f"{self.url}/packed", self.patience, self.anonymous)
        # Consolidated metadata are written last: without them, the copy is not finished.
        copy = open_lazily(store, consolidated=True)
        if copy.attrs.get("grid") != grid_of(self.lazy_fields):
            text = "a copy of another grid; build_store.py pack makes a new one"
            raise UserError(f"{store.url}: {text}")
        place = {"array": "packed/fields", "axes": ("level", *AXES)}
        encoding = copy["fields"].encoding | place
        names = copy.attrs["variables"]
        if missing := set(self.variables) - set(names):
            raise UserError(f"{store.url}: {missing} are not in it; it has {names}")
        for name in self.variables:
            level = names.index(name)
            self.lazy_fields[name].encoding = encoding | {"level": level}

    def __getstate__(self) -> dict[str, Any]:
        """What a loader's worker gets, which opens the store for itself."""
        return self.__dict__ | {"requests": {}, "opened": None}

    @property
    def array(self) -> ts.TensorStore:
        """The fields (V, T, H, W), and after the last column the first ones again."""
        if self.opened is None:
            if self.cache_mb and self.has_shards:
                raise UserError(
                    f"{self.url} has shards: use FastDataset without a cache"
                )
            context = shared_context(self.concurrency, self.cache_mb)
            # A packed copy has all chunks.
            has_land = self.missing_chunks == "land" and not self.packed
            opening = open_arrays(
                self.url, self.encodings, self.anonymous, has_land, context
            )
            layers = []
            for future, encoding in zip(opening, self.encodings, strict=True):
                layers.append(on_grid(self.result(future), encoding))
            fields = ts.stack(layers)
            # The globe is round: a window across the edge is a plain slice of this.
            width = self.grid.window[2]
            first_columns = fields[..., :width]
            self.opened = ts.concat([fields, first_columns], axis=3)
        return self.opened

    def prefetch(self, indices: Sequence[int]) -> None:
        """Ask for all chunks of a batch, and do not wait."""
        if tuple(indices) in self.requests:
            return
        shape = (len(indices), len(self.variables), *self.grid.window)
        values = np.empty(shape, self.dtype)
        futures = []
        for target, index in zip(values, indices, strict=True):
            region = (slice(None), *self.grid.slices(index))
            # A slice keeps its coordinates; translate_to[0] lets them begin at 0, as the target's.
            window = self.array[region].translate_to[0]
            # Into the batch's own array: a result of read() would be copied into it. (The
            # DataLoader copies the batch once more, when it stacks the samples.)
            place = ts.array(target, copy=False, write=True)
            futures.append(place.write(window))
        self.requests[tuple(indices)] = values, futures

    def forget_requests(self) -> None:
        """Drop the batches that are under way."""
        self.requests.clear()

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, int]]:
        """The samples of a batch, for which a DataLoader calls this. Waits, if it has to."""
        start = time.perf_counter()
        cpu_start = time.process_time()
        self.prefetch(indices)  # does nothing if LookAhead has asked for them already
        values, futures = self.requests.pop(tuple(indices))
        for future in futures:
            self.result(future)
        # While we wait, TensorStore's threads decode. Their CPU seconds, divided by the cores,
        # count as decoding; the rest of the wait is the store's.
        waited = time.perf_counter() - start
        cpu_seconds = time.process_time() - cpu_start
        decoding = min(waited, cpu_seconds / CPU_COUNT)

        values = unpack(values, self.encodings)
        # In place: these are large.
        values -= self.mean[:, None, None, None]
        values /= self.std[:, None, None, None]
        copying = time.perf_counter() - start - waited
        self.seconds += torch.tensor([waited - decoding, decoding + copying])
        samples = zip(torch.from_numpy(values), indices, strict=True)
        return list(samples)

    def result(self, future: Any) -> Any:
        """A future's value. Raises UserError for a chunk that is missing, or that never comes."""
        try:
            return future.result(timeout=self.patience)
        except TimeoutError as error:
            raise UserError(
                f"{self.url}: a window was not complete in {self.patience:g} s: "
                "if the server answers, raise patience, or lower concurrency"
            ) from error
        except ValueError as error:
            reason = str(error).partition(" [")[0]
            if self.opened is None:
                reason += "; CloudDataset may be able to read it"
            raise UserError(f"{self.url}: {reason}") from error
