"""Arrays of a Zarr store as TensorStore opens them, on one grid of (time, lat, lon)."""

import functools
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import tensorstore as ts
import xarray as xr

from src.data.checked_store import SILENT_SECONDS
from src.data.s3_server import BUCKET, CREDENTIALS, connect
from src.data.store import AXES
from src.run.errors import UserError

# How numbers are packed into others (CF conventions, 8.1); xarray knows what they mean.
PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
RETRIES = {"max_retries": 8, "initial_delay": "100ms", "max_delay": "5s"}


@functools.cache
def shared_context(concurrency: int, cache_mb: float) -> ts.Context:
    """Limits and cache of all datasets of this process that have the same settings."""
    # Without these, a silent request is never tried again.
    silent = "TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS"
    os.environ.setdefault(silent, str(SILENT_SECONDS))
    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")
    limit = {"limit": concurrency}
    settings: dict[str, Any] = {
        "cache_pool": {"total_bytes_limit": int(cache_mb * 1e6)},
        "s3_request_concurrency": limit,
        "gcs_request_concurrency": limit,
        "file_io_concurrency": limit,
        "s3_request_retries": RETRIES,
        "gcs_request_retries": RETRIES,
    }
    return ts.Context(settings)


def open_arrays(
    url: str,
    encodings: list[dict[str, Any]],
    anonymous: bool,
    has_land: bool,
    context: ts.Context,
) -> list[ts.Future]:
    """Begin to open the array of each encoding (store.select makes them).

    With has_land, a missing chunk is land. It is an error otherwise.
    """
    futures = []
    for encoding in encodings:
        # Zarr 3 alone has a serializer.
        driver = "zarr3" if "serializer" in encoding else "zarr"
        spec = {
            "driver": driver,
            "kvstore": kvstore(f"{url}/{encoding['array']}/", anonymous),
            "fill_missing_data_reads": has_land,
            "recheck_cached_data": "open",  # nobody changes a store while it is read
        }
        futures.append(ts.open(spec, read=True, context=context))
    return futures


def kvstore(url: str, anonymous: bool) -> dict[str, Any]:
    """TensorStore's description of a folder of objects. Raises UserError for an unknown scheme.

    On gs:// there is no choice: it sends the credentials that it finds, and none if there are none.
    """
    parts = urlsplit(url)
    if not parts.scheme:
        return {"driver": "file", "path": f"{Path(url).resolve()}/"}
    if parts.scheme not in ("s3", "gs"):
        raise UserError(
            f"{url}: TensorStore knows s3://, gs:// and folders; use CloudDataset"
        )
    place: dict[str, Any] = {
        "bucket": parts.netloc,
        "path": parts.path[1:],
    }
    if parts.scheme == "gs":
        return {"driver": "gcs", **place}

    # boto prefers the first one, too.
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get(
        "AWS_ENDPOINT_URL"
    )
    # Where boto looks as well: environment, profiles, the role of a machine.
    profile = os.environ.get("AWS_PROFILE", "default")
    credentials = {"type": "default", "profile": profile}
    if anonymous:
        credentials = {"type": "anonymous"}
    if parts.netloc == BUCKET:
        embedded = connect()["AWS_ENDPOINT_URL"]
        endpoint = os.environ.get("EMBEDDED_S3_ENDPOINT", embedded)
        # Not through the environment: another bucket may need the keys that are there.
        files = dict.fromkeys(("config_file", "credentials_file"), str(CREDENTIALS))
        credentials = {"type": "profile", "profile": "default", **files}
    place |= {"driver": "s3", "aws_credentials": credentials}
    if endpoint:
        # A server of one's own may have any region; TensorStore cannot ask it.
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        place |= {"endpoint": endpoint, "aws_region": region or "us-east-1"}
    return place


def on_grid(array: ts.TensorStore, encoding: dict[str, Any]) -> ts.TensorStore:
    """An array, or one level of it, with the axes time, lat and lon; nothing is read yet."""
    array = array[ts.d[:].label[encoding["axes"]]]
    if encoding["level"] is not None:
        array = array[ts.d["level"][encoding["level"]]]
    return array[ts.d[AXES].transpose[:]]


def packing(encoding: dict[str, Any]) -> dict[str, Any]:
    """The attributes that give stored numbers another meaning; not NaN for no value."""
    values = {key: encoding[key] for key in PACKING if key in encoding}
    # NaN alone is unequal to itself.
    return {key: value for key, value in values.items() if value == value}


def is_plain(encoding: dict[str, Any]) -> bool:
    """Whether the stored numbers are the values: float32, and NaN where there is none."""
    return encoding["dtype"] == np.float32 and not packing(encoding)


def unpack(values: np.ndarray, encodings: list[dict[str, Any]]) -> np.ndarray:
    """Stored numbers (B, V, T, H, W) as float32 with NaN: TensorStore does not do this."""
    if all(map(is_plain, encodings)):
        return values
    unpacked = np.empty(values.shape, np.float32)
    for number, encoding in enumerate(encodings):
        dims = ("batch", *AXES)
        stored = xr.Variable(dims, values[:, number], packing(encoding))
        # xarray's own function, so that both readers have the same bits. It may make float64.
        unpacked[:, number] = xr.conventions.decode_cf_variable("", stored).values
    return unpacked
