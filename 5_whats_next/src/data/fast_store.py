"""Open the arrays of a Zarr store with TensorStore: its addresses, limits, errors and counters.

What chapter 2's ``cloud_store.py`` does for xarray: any URL, retries with a limit, an error for a
chunk that is missing, one line for each fault. TensorStore's options are described at
https://google.github.io/tensorstore/kvstore/s3/index.html and .../driver/zarr3/index.html.
"""

import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import tensorstore as ts
import zarr

from src.data.cloud_errors import CloudError, explain
from src.data.cloud_store import OPENING, SILENCE, split_key
from src.data.s3_server import BUCKET, FOLDER, connect

PACKED = "packed/fields"  # the copy of a store that holds all variables together
NAME = re.compile(r"\w[\w-]*")  # of a copy
METRICS = ("read", "retries", "bytes_read")  # TensorStore's names for cloud_store.COUNTERS
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds before a retry; each pause doubles the one before

_counted = np.zeros(len(METRICS), np.int64)  # by this process so far
_counting = threading.Lock()


def read_context(concurrency: int, cache_mb: float, patience: float) -> ts.Context:
    """What arrays share: connections, a cache of decoded chunks, and patience in seconds."""
    # A request that stalls counts as failed, and is repeated; TensorStore's default is to wait.
    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", f"{SILENCE:.0f}")
    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")
    retries = {
        "max_retries": number_of_retries(patience),
        "initial_delay": f"{FIRST_PAUSE * 1000:.0f}ms",
        "max_delay": f"{LONGEST_PAUSE:.0f}s",
    }
    return ts.Context(
        {
            "cache_pool": {"total_bytes_limit": int(cache_mb * 1e6)},
            "s3_request_concurrency": {"limit": concurrency},
            "gcs_request_concurrency": {"limit": concurrency},
            "http_request_concurrency": {"limit": concurrency},
            "s3_request_retries": retries,
            "gcs_request_retries": retries,
            "http_request_retries": retries,
        }
    )


def packed_path(name: str | bool) -> str:
    """Where a copy is in the store, by name; ``packed/fields`` for true."""
    if name is True:
        return PACKED
    if not name or not NAME.fullmatch(name):
        raise CloudError(f"packed: {name!r} is no name; allowed: letters, digits, _ and -")
    return f"packed/{name}"


def packed_rows(array: zarr.Array | zarr.Group, variables: Sequence[str], url: str) -> list[int]:
    """Where the packed array has the variables. Raises CloudError if it does not have all."""
    there = list(array.attrs.get("variables", []))  # type: ignore[arg-type]
    missing = [name for name in variables if name not in there]
    if missing or not array.attrs.get("complete"):
        what = f"has no {', '.join(missing)}" if missing else "is not finished"
        raise CloudError(f"{url}: its packed copy {what}; run pack_store.py again")
    return [there.index(name) for name in variables]


def number_of_retries(patience: float) -> int:
    """How many pauses fit into ``patience`` seconds."""
    number, pause, total = 0, FIRST_PAUSE, 0.0
    while total + pause <= patience:
        number, total, pause = number + 1, total + pause, min(2 * pause, LONGEST_PAUSE)
    return max(1, number)


def key_value_store(url: str, anonymous: bool) -> dict[str, Any]:
    """TensorStore's description of a place; credentials are not in it, only where they are."""
    parts = urlsplit(url)
    path = parts.path.lstrip("/")
    if parts.scheme in ("", "file"):
        return {"driver": "file", "path": str(Path(parts.path).resolve()) + "/"}
    if parts.scheme in ("gs", "gcs"):
        return {"driver": "gcs", "bucket": parts.netloc, "path": path}
    if parts.scheme in ("http", "https"):
        return {
            "driver": "http",
            "base_url": f"{parts.scheme}://{parts.netloc}",
            "path": f"/{path}",
        }
    if parts.scheme not in ("s3", "s3a"):
        raise CloudError(
            f"{url}: FastDataset does not read {parts.scheme}://; allowed: s3, gs, https and local "
            "paths (CloudDataset reads whatever fsspec does)"
        )
    place: dict[str, Any] = {"driver": "s3", "bucket": parts.netloc, "path": path}
    place["aws_credentials"] = {"type": "anonymous" if anonymous else "default"}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if parts.netloc == BUCKET:
        own = connect()
        endpoint = os.environ.get("EMBEDDED_S3_ENDPOINT") or own["AWS_ENDPOINT_URL"]
        place["aws_credentials"] = embedded_credentials(own)
    if endpoint:
        place["endpoint"] = endpoint.rstrip("/")
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        place["aws_region"] = region or "us-east-1"  # whatever is no AWS takes any
    return place


def embedded_credentials(own: dict[str, str]) -> dict[str, str]:
    """Those of this chapter's server, in a file: TensorStore takes none directly."""
    path = FOLDER / "credentials"
    content = (
        f"[embedded]\naws_access_key_id = {own['AWS_ACCESS_KEY_ID']}\n"
        f"aws_secret_access_key = {own['AWS_SECRET_ACCESS_KEY']}\n"
    )
    if not path.exists() or path.read_text() != content:
        # Under a name of its own: all ranks and workers do this at the same time.
        with NamedTemporaryFile("w", dir=FOLDER, delete=False) as file:  # others cannot read it
            file.write(content)
        Path(file.name).replace(path)
    return {
        "type": "profile",
        "profile": "embedded",
        "credentials_file": str(path.resolve()),
        "config_file": os.devnull,
    }


def open_arrays(
    group: zarr.Group, names: Sequence[str], place: dict[str, Any], context: ts.Context, url: str
) -> list[ts.TensorStore]:
    """Arrays whose missing chunks are errors. Raises CloudError if one cannot be read as it is."""
    specs = [array_spec(group, name, place, url) for name in names]
    coming = [ts.open(spec, read=True, open=True, context=context) for spec in specs]
    try:
        return [array.result(timeout=2 * OPENING) for array in coming]
    except (ValueError, TimeoutError) as error:
        raise CloudError(f"{url}: {explain_tensorstore(error, url)}") from error


def array_spec(group: zarr.Group, name: str, place: dict[str, Any], url: str) -> dict[str, Any]:
    """TensorStore's description of an array. Raises CloudError if it would read other values."""
    array = group.get(name)
    if not isinstance(array, zarr.Array):
        raise CloudError(f"{url}: there is no array {name} here; pack_store.py makes packed ones")
    attributes = {"scale_factor", "add_offset"} & set(array.attrs)
    filler = array.attrs.get("_FillValue", np.nan)
    if attributes or array.dtype.kind != "f" or not plain_nan(filler):
        raise CloudError(
            f"{url}: {name} is packed into {array.dtype} with a scale or a value for what is "
            "missing; allowed: floating point with NaN (CloudDataset unpacks, pack_store.py copies)"
        )
    return {
        "driver": "zarr" if array.metadata.zarr_format == 2 else "zarr3",
        "kvstore": place | {"path": f"{place['path']}{name}/"},
        "fill_missing_data_reads": False,
        "recheck_cached_data": False,  # nobody changes a store while it is read
        "recheck_cached_metadata": False,
    }


def plain_nan(value: Any) -> bool:
    """Whether an attribute ``_FillValue`` says NaN; Zarr v3 keeps it as text, in base 64."""
    if isinstance(value, str):
        return value in ("NaN", "AAAAAAAA+H8=", "AADAfw==")
    return bool(np.isnan(value))


def explain_tensorstore(error: Exception, url: str) -> str:
    """The fault in one line, as cloud_store.py would put it."""
    if isinstance(error, TimeoutError):
        return explain(error, SILENCE)
    code, _, text = str(error).partition(": ")
    text = text.partition(" [tensorstore_spec=")[0].partition(" [http_response_body=")[0]
    found = re.search(r'"([^"]+)"(?: is missing|: (.*))', text)
    if not found:
        return text or str(error)
    key = found[1].rpartition(urlsplit(url).path.strip("/") + "/")[2]
    array, _, chunk = split_key(key)
    if code == "PERMISSION_DENIED":
        return f"access denied: wrong credentials, or no right to do this here (reading {key})"
    if code == "NOT_FOUND":
        return f"chunk {chunk} of the array {array} is missing"
    if "Operation too slow" in found[2]:  # curl's words for a stalled request
        return f"{explain(TimeoutError(), SILENCE)} (reading {key})"
    if code in ("ABORTED", "UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "UNKNOWN"):
        return f"{found[2]} (reading {key})"
    return f"chunk {chunk} of the array {array} is broken: {found[2]}"


def count_requests(counts: np.ndarray, driver: str) -> None:
    """Add what this process has asked a driver for since the last time to (3,) ``counts``."""
    with _counting:
        found = np.zeros_like(_counted)
        for metric in ts.experimental_collect_matching_metrics(f"/tensorstore/kvstore/{driver}/"):
            kind = metric["name"].rpartition("/")[2]
            if kind in METRICS:
                found[METRICS.index(kind)] += sum(entry["value"] for entry in metric["values"])
        found[0] += found[1]  # a retry is a request, too
        counts += found - _counted
        _counted[:] = found
