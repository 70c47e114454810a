"""CloudDataset's samples, to the bit and in the same order, read as fast as the store allows.

TensorStore (https://google.github.io/tensorstore) reads Zarr in C++. Its read() and write() return
a future at once; result() waits. So all chunks of several batches are on their way while the model
computes, and a chunk that two of their windows touch is asked for once.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorstore as ts
import torch
from torch import Tensor

from src.data.pytorch_dataset import Split
from src.data.tensorstore_arrays import on_grid, open_array, shared_context, unpack
from src.data.usecase_cloud_dataset import CloudDataset
from src.run.errors import UserError


class FastDataset(CloudDataset):
    """Windows of a Zarr store, a batch at a time, several batches ahead of the training.

    Args:
        split: which period the windows are from.
        batches_ahead: batches that are on their way while the model computes.
        concurrency: requests that are on their way at the same time.
        cache_mb: megabytes of decoded chunks that stay in memory.
        settings: those of CloudDataset.

    Raises:
        UserError: the variables have several types.
    """

    def __init__(
        self,
        split: Split,
        batches_ahead: int = 16,
        concurrency: int = 256,
        cache_mb: float = 0.0,
        **settings: Any,
    ) -> None:
        super().__init__(split, dask="none", **settings)
        self.batches_ahead = batches_ahead
        self.concurrency = concurrency
        self.cache_mb = cache_mb
        # The batches on their way: where their values will be, and what to wait for.
        self.requests: dict[tuple[int, ...], tuple[np.ndarray, list[Any]]] = {}
        self.opened: ts.TensorStore | None = None
        # In the processor's byte order, whatever the store's: TensorStore writes no other.
        self.dtype = self.stored[0].dtype.newbyteorder("=")
        if len({field.dtype for field in self.stored}) > 1:
            raise UserError(
                f"{self.url}: the variables have several types; use CloudDataset"
            )

    def __getstate__(self) -> dict[str, Any]:
        """What a loader's worker gets, which opens the store for itself."""
        return self.__dict__ | {"requests": {}, "opened": None}

    @property
    def array(self) -> ts.TensorStore:
        """The fields (V, T, H, W), and after the last column the first ones again."""
        if self.opened is None:
            context = shared_context(self.concurrency, self.cache_mb)
            futures = []
            for field in self.stored:
                future = open_array(
                    self.url,
                    field,
                    self.anonymous,
                    self.store.has_land,
                    context,
                )
                futures.append(future)
            layers = []
            for future, field in zip(futures, self.stored, strict=True):
                layers.append(on_grid(self.result(future), field))
            fields = ts.stack(layers)
            # The globe is round: a window across the edge is a plain slice of this.
            first_columns = fields[..., : self.grid.window[2]]
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
            # A slice keeps its coordinates; translate_to[0] starts them at 0, like the target's.
            window = self.array[region].translate_to[0]
            # Into the batch's own array: a result of read() would be copied into it.
            place = ts.array(target, copy=False, write=True)
            futures.append(place.write(window))
        self.requests[tuple(indices)] = values, futures

    def forget_requests(self) -> None:
        """Drop the batches that are on their way."""
        self.requests.clear()

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, int]]:
        """The samples of a batch, for which a DataLoader calls this. Waits, if it has to."""
        self.prefetch(indices)  # does nothing if LookAhead has asked for them already
        values, futures = self.requests.pop(tuple(indices))
        for future in futures:
            self.result(future)
        values = unpack(values, self.stored)
        # In place: these are large.
        values -= self.mean[:, None, None, None]
        values /= self.std[:, None, None, None]
        return list(zip(torch.from_numpy(values), indices, strict=True))

    def result(self, future: ts.Future) -> Any:
        """A future's value. Raises UserError for a chunk that is missing, or that never comes."""
        try:
            return future.result(timeout=self.patience)
        except TimeoutError as error:
            raise UserError(
                f"{self.url}: a window was not complete in {self.patience:g} s: "
                "if the server answers, raise patience, or lower concurrency"
            ) from error
        except ValueError as error:  # TensorStore's, for all that has failed
            reason = str(error).partition(" [")[0]
            if self.opened is None:
                reason += "; CloudDataset may be able to read it"
            raise UserError(f"{self.url}: {reason}") from error
