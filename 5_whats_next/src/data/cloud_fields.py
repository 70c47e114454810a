"""Fields in a Zarr store, opened without reading them, and what does not fit named in one line."""

import hashlib
import json
import warnings
from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np
import xarray as xr
import zarr
from zarr.core.sync import sync
from zarr.storage import FsspecStore

from src.data.cloud_errors import CloudError, explain
from src.data.cloud_store import CheckedStore
from src.data.netcdf import AXES, OTHER_NAMES

COMPLETE = "complete"  # attribute of a store that build_store.py makes: whether it is finished
ORIGIN = {"source", "sha256", "seed"}  # others of its attributes: what it is made of


def open_fields_lazily(store: CheckedStore, with_dask: bool = False) -> xr.Dataset:
    """The variables of a store over (time, lat, lon); reading a part reads just its chunks.

    Raises CloudError if there is no store, or one that is not finished.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*consolidated metadata")
        # SeaweedFS lists a folder that has lost its objects; on S3 there are no folders.
        warnings.filterwarnings("ignore", message="Object at .* is not recognized")
        try:
            fields = xr.open_zarr(store, chunks={} if with_dask else None)
        except FileNotFoundError as error:
            raise CloudError(f"{store.url}: {why_not_there(store)}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise CloudError(f"{store.url}: no Zarr store: {explain(error)}") from error
    if not fields.attrs.get(COMPLETE, True):
        raise CloudError(f"{store.url}: this store is not finished; run its build command again")
    return fields.rename({old: new for old, new in OTHER_NAMES.items() if old in fields.variables})


def why_not_there(store: CheckedStore) -> str:
    """Tell a missing bucket from a missing store: the libraries give the same error for both."""
    bucket = store.url.partition("://")[2].partition("/")[0]
    if store.url.startswith("s3://") and not bucket_exists(store, bucket):
        return f"there is no bucket {bucket}"
    if store.anonymous:
        return "there is no Zarr store here, or none for readers without credentials"
    return "there is no Zarr store here; build_store.py makes one"


def bucket_exists(store: CheckedStore, bucket: str) -> bool:
    """Whether there is the bucket that the store would be in, as far as this user may know."""
    assert isinstance(store._store, FsspecStore)
    call = store._store.fs._call_s3
    request = store.insist(bucket, lambda: call("head_bucket", Bucket=bucket), "looking for")
    try:
        sync(request)
    except CloudError as error:
        return not isinstance(error.__cause__, FileNotFoundError)
    return True


def open_for_training(store: CheckedStore, with_dask: bool) -> xr.Dataset:
    """Open with little patience, so that a wrong address is soon found; read with more of it."""
    with store.in_a_hurry():
        return open_fields_lazily(store, with_dask)


def choose_variables(fields: xr.Dataset, wanted: Sequence[str] | None, url: str) -> list[str]:
    """The names of the variables to train on. Raises CloudError for one that does not fit."""
    # In order of the alphabet: a folder lists its arrays in any order.
    names = sorted(str(name) for name in fields.data_vars)
    missing = [name for name in wanted or names if name not in names]
    if missing or not names:
        raise CloudError(
            f"data.dataset.variables: {', '.join(missing) or 'none'} not in {url}; "
            f"allowed: {', '.join(names)}"
        )
    for name in wanted or names:
        field = fields[name]
        if field.dims != AXES:
            raise CloudError(
                f"data.dataset: {name} in {url} has the axes {', '.join(map(str, field.dims))}; "
                f"allowed: {', '.join(AXES)}, in this order"
            )
        if not np.issubdtype(field.dtype, np.floating):
            raise CloudError(
                f"data.dataset: {name} in {url} has the type {field.dtype}; allowed: floating "
                "point, or integers with scale_factor"
            )
    if not np.issubdtype(fields["time"].dtype, np.datetime64):
        raise CloudError(f"data.dataset: time in {url} is not given as dates")
    return list(wanted or names)


def check_longitudes(lon: np.ndarray, url: str) -> None:
    """Raise CloudError unless the grid goes round the globe."""
    round_trip = (lon[-1] - lon[0]) * len(lon) / max(len(lon) - 1, 1)
    if not np.isclose(abs(round_trip), 360, atol=0.1):
        raise CloudError(
            f"data.dataset.wrap_longitude: the grid of {url} covers {abs(round_trip):.1f} degrees "
            "of longitude; allowed: false, unless it goes round the globe"
        )


def region_of(fields: xr.Dataset, region: Sequence[float] | None) -> tuple[slice, slice]:
    """Rows and columns between south, north, west and east. Raises CloudError if there are none."""
    if region is None:
        return slice(0, fields.sizes["lat"]), slice(0, fields.sizes["lon"])
    parts = []
    for axis, low, high in zip(("lat", "lon"), region[::2], region[1::2], strict=True):
        values = fields[axis].values
        inside = np.flatnonzero((values >= low) & (values <= high))
        if not inside.size:
            raise CloudError(
                f"data.dataset.region: no {axis} from {low:g} to {high:g}; allowed: south, north, "
                f"west, east within {values.min():g} and {values.max():g}"
            )
        parts.append(slice(int(inside[0]), int(inside[-1]) + 1))
    return parts[0], parts[1]


def step_numbers(time: np.ndarray) -> np.ndarray:
    """Number each time step (T,); where the calendar leaves steps out, so do the numbers.

    Months have 28 to 31 days; other steps are counted in units of the most frequent one.
    """
    if len(time) < 2:
        return np.zeros(len(time), int)
    steps = np.diff(time) / np.timedelta64(1, "D")
    if np.median(steps) >= 28:
        months = time.astype("datetime64[M]").astype(int)
        return np.round((months - months[0]) / max(1, np.median(np.diff(months)))).astype(int)
    return np.round(np.concatenate([[0], np.cumsum(steps)]) / np.median(steps)).astype(int)


def fingerprint(fields: xr.Dataset, name: str) -> str:
    """Tells a variable from that of another store by what describes it, not by its values."""
    field = fields[name]
    # Those of others change when they add data.
    attributes = {key: value for key, value in fields.attrs.items() if key in ORIGIN}
    described = [attributes, list(field.dims), list(field.shape), str(field.dtype), field.attrs]
    digest = hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode())
    for axis in AXES:
        digest.update(fields[axis].values.tobytes())
    return digest.hexdigest()


def chunks_of(store: CheckedStore, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of the chunks of a variable, and of its objects: shards, if it has some."""
    array = zarr.open_array(store, path=name, mode="r")
    return array.chunks, array.shards or array.chunks


def broken_chunk(
    store: CheckedStore, names: Sequence[str], places: Iterable[tuple[slice, ...]]
) -> str:
    """The first chunk in some places that cannot be decoded, as a message, or nothing.

    The decoders' own errors do not say which one it is. The last axis may go round the globe.
    """
    for name, place in product(names, places):
        array = zarr.open_array(store, path=name, mode="r")
        sizes = array.shards or array.chunks
        touched = (
            sorted({i % n // size for i in range(part.start, part.stop)})
            for part, n, size in zip(place, array.shape, sizes, strict=True)
        )
        for chunk in product(*touched):
            try:
                array[tuple(slice(i * s, (i + 1) * s) for i, s in zip(chunk, sizes, strict=True))]
            except (RuntimeError, ValueError) as error:
                number = "/".join(map(str, chunk))
                return f"chunk {number} of the array {name} is broken: {explain(error)}"
    return ""
