"""Arrays of a Zarr store as TensorStore opens them, on one grid of (time, lat, lon)."""

import functools
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts
import xarray as xr

from src.data.fields import AXES, StoredField
from src.data.store import embedded_server
from src.run.errors import UserError

# As often as it takes: how long a reader waits is decided by `patience`. The pauses grow to this.
RETRIES = {"max_retries": 10**6, "initial_delay": "100ms", "max_delay": "2s"}


@functools.cache
def shared_context(concurrency: int, cache_mb: float) -> ts.Context:
    """Limits and cache of all datasets of this process that have the same settings."""
    # Without these, a silent request is never tried again.
    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", "5")
    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")
    settings: dict[str, Any] = {
        "cache_pool": {"total_bytes_limit": int(cache_mb * 1e6)},
        "s3_request_retries": RETRIES,
        "gcs_request_retries": RETRIES,
    }
    for kind in ("s3_request", "gcs_request", "file_io"):
        settings[f"{kind}_concurrency"] = {"limit": concurrency}
    return ts.Context(settings)


def open_array(
    url: str, field: StoredField, anonymous: bool, has_land: bool, context: ts.Context
) -> ts.Future:
    """Begin to open the array of a field. With has_land, a missing chunk is land, and no error."""
    spec = {
        "driver": "zarr3" if field.zarr_format == 3 else "zarr",
        "kvstore": kvstore(f"{url}/{field.array}/", anonymous),
        "fill_missing_data_reads": has_land,
        "recheck_cached_data": "open",  # nobody changes a store while it is read
    }
    return ts.open(spec, read=True, context=context)


def kvstore(url: str, anonymous: bool) -> dict[str, Any]:
    """TensorStore's description of a folder of objects. Raises UserError for an unknown scheme.

    On gs:// there is no choice: it sends the credentials that it finds, and none if there are none.
    """
    if "://" not in url:
        return {"driver": "file", "path": f"{Path(url).resolve()}/"}
    scheme, bucket, path = re.split("://|/", url, maxsplit=2)
    place: dict[str, Any] = {"bucket": bucket, "path": path}
    if scheme == "gs":
        return {"driver": "gcs", **place}
    if scheme != "s3":
        raise UserError(
            f"{url}: TensorStore knows s3://, gs:// and folders; use CloudDataset"
        )

    server = embedded_server(url)
    if anonymous:
        credentials = {"type": "anonymous"}
    elif server:
        # Not through the environment: another bucket may need the keys that are there.
        file = server["AWS_SHARED_CREDENTIALS_FILE"]
        credentials = {"type": "profile", "profile": "default"}
        credentials |= {"config_file": file, "credentials_file": file}
    else:
        # Where boto looks as well: environment, profiles, the role of a machine.
        profile = os.environ.get("AWS_PROFILE", "default")
        credentials = {"type": "default", "profile": profile}
    place |= {"driver": "s3", "aws_credentials": credentials}
    endpoint = (
        server.get("AWS_ENDPOINT_URL")
        or os.environ.get("AWS_ENDPOINT_URL_S3")  # boto prefers it, too
        or os.environ.get("AWS_ENDPOINT_URL")
    )
    if endpoint:
        # A server of one's own may have any region; TensorStore cannot ask it.
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        place |= {"endpoint": endpoint, "aws_region": region or "us-east-1"}
    return place


def on_grid(array: ts.TensorStore, field: StoredField) -> ts.TensorStore:
    """An array, or one level of it, with the axes time, lat and lon; nothing is read yet."""
    array = array[ts.d[:].label[tuple(field.chunk)]]
    if field.level is not None:
        array = array[ts.d["level"][field.level]]
    return array[ts.d[AXES].transpose[:]]


def unpack(values: np.ndarray, fields: list[StoredField]) -> np.ndarray:
    """Stored numbers (B, V, T, H, W) as float32 with NaN: TensorStore does not do this."""
    if all(field.dtype == np.float32 and not field.packing for field in fields):
        return values  # the stored numbers are the values
    unpacked = np.empty(values.shape, np.float32)
    for number, field in enumerate(fields):
        stored = xr.Variable(("batch", *AXES), values[:, number], field.packing)
        # xarray's own function, so that both readers have the same bits. It may make float64.
        unpacked[:, number] = xr.conventions.decode_cf_variable("", stored).values
    return unpacked
