"""CloudDataset's samples, to the bit and in the same order, read as fast as the store allows."""

# TensorStore (https://google.github.io/tensorstore) reads Zarr in C++. Its read() and write()
# return a future at once; result() waits. So all chunks of several batches are on their way while
# the model computes, and a chunk that two of their windows touch is asked for once.

import math
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import tensorstore as ts
import torch
import xarray as xr
import zarr
from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor
from torch.utils.data import Sampler

from src.data.pytorch_dataset import Split
from src.data.s3_server import BUCKET, CREDENTIALS, connect
from src.data.store import AXES, open_fields, open_store
from src.data.usecase_cloud_dataset import CloudDataset
from src.errors import UserError

# How numbers are packed into others (CF conventions, 8.1); xarray knows what they mean.
PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
RETRIES = {"max_retries": 8, "initial_delay": "100ms", "max_delay": "5s"}


class FastDataset(CloudDataset):
    """Windows of a Zarr store, a batch at a time, several batches ahead of the training.

    Args:
        batches_ahead: batches that are on their way while the model computes.
        concurrency: requests that are on their way at the same time.
        cache_mb: megabytes of decoded chunks that stay in memory.
        packed: read the copy with all variables in each chunk, which build_store.py pack makes.
        settings: those of CloudDataset.
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
        super().__init__(split, **settings)
        self.batches_ahead, self.concurrency = batches_ahead, concurrency
        self.cache_mb, self.packed = cache_mb, packed
        self.requested: dict[
            tuple[int, ...], tuple[np.ndarray, list[ts.WriteFutures]]
        ] = {}
        self.opened: ts.TensorStore | None = None
        # Seconds of waiting for the store, and of decoding and copying, for a diagnosis. Of all
        # workers, which add without a lock: a lost update changes it by some milliseconds.
        self.seconds = torch.zeros(2, dtype=torch.float64).share_memory_()
        # How each variable is stored: its array, type, packing, axes, level (store.select).
        self.encodings = [
            dict(self.lazy_fields[name].encoding) for name in self.variables
        ]
        axes = self.encodings[0]["axes"]
        sizes = self.encodings[0]["chunks"]
        self.chunk = (1, *(sizes[axes.index(axis)] for axis in AXES))
        self.variable_order = list(range(len(self.variables)))
        if packed:
            store = open_store(f"{self.url}/packed", self.patience, self.anonymous)
            copy = open_fields(store, consolidated=True)
            self.chunk = copy["fields"].encoding["chunks"]
            names = copy.attrs["variables"]
            self.variable_order = [names.index(name) for name in self.variables]
            plain = {"array": "packed/fields", "dtype": np.dtype("float32")}
            self.encodings = [plain]
        self.arrays = [encoding["array"] for encoding in self.encodings]
        self.dtype = self.encodings[0]["dtype"]
        if any(encoding["dtype"] != self.dtype for encoding in self.encodings):
            raise UserError(
                f"{self.url}: the variables have several types; use CloudDataset"
            )
        # Only the store itself knows which of the two formats of Zarr it has.
        group = zarr.open_group(
            open_store(self.url, self.patience, self.anonymous), mode="r"
        )
        self.driver = "zarr" if group.metadata.zarr_format == 2 else "zarr3"

    def __getstate__(self) -> dict[str, Any]:
        """What a loader's worker gets, which opens the store for itself."""
        return self.__dict__ | {"requested": {}, "opened": None}

    @property
    def array(self) -> ts.TensorStore:
        """The fields (V, T, H, W), and after the last column the first ones again."""
        if self.opened is None:
            # A request that has been silent for so long is tried again; without these, never.
            os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", "5")
            os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")
            cache = {"cache_pool": {"total_bytes_limit": int(self.cache_mb * 1e6)}}
            requests = {"s3_request_concurrency": {"limit": self.concurrency}}
            context = ts.Context(cache | requests | {"s3_request_retries": RETRIES})
            opening = [
                ts.open(
                    spec(self.url, name, self.driver, self.anonymous),
                    read=True,
                    context=context,
                )
                for name in self.arrays
            ]
            arrays = [self.result(array) for array in opening]
            if self.packed:
                fields = arrays[0]
            else:
                pairs = zip(arrays, self.encodings, strict=True)
                fields = ts.stack([on_grid(*pair) for pair in pairs])
            fields = fields[self.variable_order]
            # The globe is round: a window across the edge is a plain slice of this.
            self.opened = ts.concat(
                [fields, fields[..., : self.grid.window[2]]], axis=3
            )
        return self.opened

    def prefetch(self, indices: Sequence[int]) -> None:
        """Ask for all chunks of a batch, and do not wait."""
        if tuple(indices) not in self.requested:
            shape = (len(indices), len(self.variables), *self.grid.window)
            values = np.empty(shape, self.dtype)
            # Into the place where the batch needs it: a result of read() would be copied again.
            # A slice keeps its coordinates; translate_to[0] lets them begin at 0, as the target's.
            futures = [
                ts.array(target, copy=False, write=True).write(
                    self.array[(slice(None), *self.grid.slices(index))].translate_to[0]
                )
                for target, index in zip(values, indices, strict=True)
            ]
            self.requested[tuple(indices)] = values, futures

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, int]]:
        start, computed = time.perf_counter(), time.process_time()
        self.prefetch(indices)  # does nothing if LookAhead has asked for them already
        values, futures = self.requested.pop(tuple(indices))
        for future in futures:
            self.result(future)
        # What TensorStore's threads compute meanwhile is decoding, and no wait for the store: their
        # CPU seconds, shared out among the cores.
        waited = time.perf_counter() - start
        decoding = min(waited, (time.process_time() - computed) / (os.cpu_count() or 1))
        self.seconds += torch.tensor([waited - decoding, decoding])
        values = self.decoded(values)
        np.subtract(values, self.mean[:, None, None, None], out=values)
        np.divide(values, self.std[:, None, None, None], out=values)
        return [(torch.from_numpy(x), i) for x, i in zip(values, indices, strict=True)]

    def decoded(self, values: np.ndarray) -> np.ndarray:
        """Stored numbers (B, V, T, H, W) as float32 with NaN: TensorStore does not do this."""
        if all(map(is_plain, self.encodings)):
            return values
        fields = []
        for number, encoding in enumerate(self.encodings):
            attributes = {key: encoding[key] for key in PACKING if key in encoding}
            stored = xr.Variable(("batch", *AXES), values[:, number], attributes)
            # xarray's own function, so that both readers have the same bits.
            fields.append(xr.conventions.decode_cf_variable("", stored).values)
        return np.stack(fields, axis=1).astype(np.float32, copy=False)

    def result(self, future: Any) -> Any:
        """A future's value. Raises UserError for a chunk that is missing, or that never comes."""
        try:
            return future.result(timeout=self.patience)
        except TimeoutError as error:
            raise UserError(f"{self.url}: no answer in {self.patience:g} s") from error
        except ValueError as error:
            reason = str(error).partition(" [")[0]
            if self.opened is None:
                reason += "; CloudDataset may be able to read it"
            raise UserError(f"{self.url}: {reason}") from error


def is_plain(encoding: dict[str, Any]) -> bool:
    """Whether the stored numbers are the values: float32, and NaN where there is none."""
    fills = [encoding.get(key, math.nan) for key in ("_FillValue", "missing_value")]
    is_scaled = encoding.keys() & {"scale_factor", "add_offset"}
    return (
        encoding["dtype"] == np.float32
        and not is_scaled
        and all(map(math.isnan, fills))
    )


def on_grid(array: ts.TensorStore, encoding: dict[str, Any]) -> ts.TensorStore:
    """An array, or one level of it, with the axes time, lat and lon; nothing is read yet."""
    axes = list(encoding["axes"])
    if encoding["level"] is not None:
        array = array[ts.d[axes.index("level")][encoding["level"]]]
        axes.remove("level")
    return array[ts.d[[axes.index(axis) for axis in AXES]].transpose[:]]


def spec(url: str, name: str, driver: str, anonymous: bool) -> dict[str, Any]:
    """TensorStore's description of an array: where it is, and that a missing chunk is an error."""
    parts = urlsplit(url)
    drivers = {"": "file", "s3": "s3", "gs": "gcs"}
    if parts.scheme not in drivers:
        raise UserError(
            f"{url}: TensorStore knows s3://, gs:// and folders; use CloudDataset"
        )
    folder = f"{Path(url).resolve()}/{name}/"
    kvstore: dict[str, Any] = {"driver": drivers[parts.scheme], "path": folder}
    if parts.scheme:
        kvstore |= {"bucket": parts.netloc, "path": f"{parts.path[1:]}/{name}/"}
    if parts.scheme == "s3":
        endpoint = os.environ.get("AWS_ENDPOINT_URL")
        # Where boto looks as well: environment, profiles, the role of a machine.
        profile = os.environ.get("AWS_PROFILE", "default")
        credentials = {"type": "default", "profile": profile}
        if anonymous:
            credentials = {"type": "anonymous"}
        if parts.netloc == BUCKET:
            endpoint = os.environ.get(
                "EMBEDDED_S3_ENDPOINT", connect()["AWS_ENDPOINT_URL"]
            )
            # Not through the environment: another bucket may need the keys that are there.
            files = dict.fromkeys(("config_file", "credentials_file"), str(CREDENTIALS))
            credentials = {"type": "profile", "profile": "default", **files}
        if endpoint:
            # A server of one's own may have any region; TensorStore cannot ask it.
            region = os.environ.get("AWS_REGION") or os.environ.get(
                "AWS_DEFAULT_REGION"
            )
            kvstore |= {"endpoint": endpoint, "aws_region": region or "us-east-1"}
        kvstore["aws_credentials"] = credentials
    return {
        "driver": driver,
        "kvstore": kvstore,
        "fill_missing_data_reads": False,
        "recheck_cached_data": False,  # nobody changes a store while it is read
    }


class LookAhead(Sampler[list[int]]):
    """Another sampler's batches; each is announced to the dataset some batches before its use."""

    def __init__(self, batches: Iterable[list[int]], dataset: Any) -> None:
        self.batches, self.dataset = batches, dataset
        self.rank = getattr(batches, "rank", 0)  # check_samples looks for it

    def __iter__(self) -> Iterator[list[int]]:
        self.dataset.requested.clear()  # the last epoch may have been left early
        queue: deque[list[int]] = deque()
        for batch in self.batches:
            self.dataset.prefetch(batch)
            queue.append(batch)
            if len(queue) > self.dataset.batches_ahead:
                yield queue.popleft()
        yield from queue

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]  # a Sampler need not have a length
