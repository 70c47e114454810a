"""Checks of a preflight that ask a storage: can the data be read, and checkpoints be written?"""

import asyncio
import importlib.util
import math
import os
import secrets
import tempfile
import time
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

import botocore.session
import fsspec
import numpy as np
from botocore.exceptions import BotoCoreError, NoCredentialsError
from fsspec.asyn import AsyncFileSystem
from s3fs import S3FileSystem
from zarr.core.sync import sync

from src.data.cloud_build import provide_ocean
from src.data.cloud_errors import CloudError, explain
from src.data.cloud_fields import chunks_of
from src.data.cloud_store import file_system, open_store
from src.data.fast_dataset import FastDataset
from src.data.s3_server import BUCKET, connect
from src.data.usecase_cloud_dataset import CloudDataset
from src.model.pytorch_model import MaskedAutoencoder
from src.preflight.plan import Finding, Plan, duration, size, within

PROBE_BYTES = 1 << 20
MUCH = 10  # times as many bytes as a sample has
PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
SET_KEYS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, see .env.example"
CHECK_KEYS = "python environment.py shows which keys are set"


def is_embedded(url: str) -> bool:
    return urlsplit(url).scheme in ("s3", "s3a") and urlsplit(url).netloc == BUCKET


def credentials(plan: Plan) -> Finding:
    """For each storage that the training uses."""
    anonymous = plan.of_dataset.get("anonymous", False)
    data, target = plan.of_dataset.get("url"), plan.uploads_to
    found = []
    for url, needed in ((data, not anonymous), (target, True)):
        protocol = fsspec.utils.get_protocol(url or "")
        if package := PACKAGES.get(protocol):
            if importlib.util.find_spec(package) is None:
                return Finding("not ok", f"{url} needs the package {package}", "install it")
            found.append(f"{protocol}: those of {package}")
        elif url and protocol in ("s3", "s3a") and needed and not is_embedded(url):
            origin = within(plan.limit, lambda: botocore.session.get_session().get_credentials())
            if origin is None:
                return Finding(
                    "not ok",
                    f"no credentials for {url}",
                    SET_KEYS + ("" if url == target else "; public data need anonymous: true"),
                )
            found.append(f"s3: from {origin.method}")
    return Finding("ok", ", ".join(dict.fromkeys(found)) or "none are needed")


def data(plan: Plan) -> Finding:
    """Open the training and the validation samples."""
    dataset, given = plan.config.data.dataset, plan.of_dataset
    url = str(given.get("url", ""))
    if is_embedded(url):  # the server of this chapter may have to start, and its store to be built
        provide_ocean(url, given["train_months"])
        connect()
    if "patience" in given:
        dataset = partial(dataset, patience=plan.limit - 1)
        # A request that stalls, in TensorStore.
        os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", f"{plan.limit - 1:.0f}")
    start = time.perf_counter()
    plan.train_set = within(plan.limit, lambda: dataset("train"))
    plan.val_set = within(plan.limit, lambda: dataset("val"))
    seconds = time.perf_counter() - start
    num_train, num_val = len(plan.train_set), len(plan.val_set)
    return Finding("ok", f"{num_train:,} and {num_val:,} samples, opened in {seconds:.1f} s")


def statistics(plan: Plan) -> Finding:
    """Mean and standard deviation, by which samples are normalised."""
    dataset = plan.sets[0]
    finite = np.isfinite([*dataset.mean, *dataset.std]).all() and np.all(dataset.std > 0)
    names = zip(dataset.variables, dataset.mean, dataset.std, dataset.units, strict=True)
    found = ", ".join(f"{name} {mean:.4g} +- {std:.3g} {unit}" for name, mean, std, unit in names)
    if not finite:
        return Finding("not ok", f"not finite: {found}", "build_store.py statistics makes them")
    return Finding("ok", found)


def model(plan: Plan) -> Finding:
    """The model for these samples: raises UserError if the patches do not fit the window."""
    shape = plan.sets[0].sample_shape
    seed = plan.config.seed_everything
    plan.model = MaskedAutoencoder(sample_shape=shape, seed=seed, **vars(plan.config.model))
    tokens = math.prod(plan.model.grid)
    return Finding("ok", f"{plan.num_parameters:,} parameters, {tokens} tokens of {shape}")


def chunks(plan: Plan) -> Finding:
    """How much is read for a batch, compared with what the batch holds."""
    dataset, size_of_batch = plan.sets[0], plan.device_batch
    if not isinstance(dataset, CloudDataset) or plan.of_dataset.get("packed"):
        return Finding("ok", "no chunks of single variables are read")
    store = open_store(dataset.url, dataset.anonymous, plan.limit - 1)
    shape, _ = within(plan.limit, lambda: chunks_of(store, dataset.variables[0]))
    numbers = np.random.default_rng(0).integers(len(dataset), size=size_of_batch)
    width = -(-dataset.opened.fields.sizes["lon"] // shape[2])
    places: list[tuple[int, ...]] = []
    for number in map(int, numbers):
        parts = zip(dataset.slices(number, dataset.opened.origin), shape, strict=True)
        touched = [range(part.start // c, (part.stop - 1) // c + 1) for part, c in parts]
        places += [(t, y, x % width) for t, y, x in product(*touched)]
    # FastDataset reads a chunk once for all samples of a batch, CloudDataset for each of them.
    read = len(set(places)) if isinstance(dataset, FastDataset) else len(places)
    times = read * math.prod(shape) / (size_of_batch * math.prod(dataset.window))
    requests = read * len(dataset.variables) / size_of_batch
    found = (
        f"chunks {shape} for windows {tuple(dataset.window)}: {requests:.1f} requests and "
        f"{times:.1f} times the bytes of each sample in a random batch"
    )
    if times > MUCH:
        return Finding("warning", found, "build_store.py and pack_store.py write other chunks")
    return Finding("ok", found)


def sample(plan: Plan) -> Finding:
    """Read one from the middle."""
    dataset = plan.sets[0]
    number = len(dataset) // 2
    start = time.perf_counter()
    x, _ = within(plan.limit, lambda: dataset[number])
    seconds = time.perf_counter() - start
    if x.isinf().any():
        return Finding("not ok", f"sample {number} has infinite values", "mend the data")
    valid = 1 - x.isnan().float().mean().item()
    found = f"number {number} in {seconds:.2f} s, {valid:.0%} of it valid"
    if not valid:
        return Finding("warning", found, "is this place land? Else look at the data")
    return Finding("ok", found)


def write(plan: Plan) -> Finding:
    """Put an object where the checkpoints go, read it back, delete it."""
    url = plan.uploads_to
    if not url:
        found = "trainer.cloud_storage_path is none: a lost machine loses the run"
        return Finding("warning", found, "set it, for example to s3://BUCKET/checkpoints")
    if is_embedded(url):
        connect()
    seconds = within(plan.limit, lambda: probe(url, plan.limit - 1))
    plan.upload_rate = PROBE_BYTES / seconds
    found = f"{url}: {size(PROBE_BYTES)} put in {seconds:.2f} s, read back, deleted"
    return Finding("ok", found)


def probe(url: str, limit: float = 4.0) -> float:
    """Seconds to put an object of PROBE_BYTES below ``url``; it is read back and deleted.

    Raises CloudError, after at most ``limit`` seconds, with what is wrong.
    """
    protocol = fsspec.utils.get_protocol(url)
    if urlsplit(url).password:
        raise CloudError(f"{protocol}: credentials do not belong into a URL; see .env.example")
    content = secrets.token_bytes(PROBE_BYTES)
    try:
        if protocol == "file":
            return probe_folder(Path(url.removeprefix("file://")), content)
        fs, path = file_system(url, protocol, anonymous=False)
        key = f"{path.rstrip('/')}/preflight-{secrets.token_hex(8)}"
        return sync(probe_object(fs, key, content, limit))
    except CloudError:
        raise
    except NoCredentialsError as error:
        raise CloudError(f"{url}: no credentials; {SET_KEYS}") from error
    except Exception as error:
        raise CloudError(f"{url}: {explain(error, limit)}; {remedy(error)}") from error


def remedy(error: Exception) -> str:
    """What to do about a refused probe."""
    if isinstance(error, PermissionError):
        return f"{CHECK_KEYS}; they have to allow put, get and delete there"
    if isinstance(error, FileNotFoundError):
        return "make the bucket, or correct trainer.cloud_storage_path"
    if isinstance(error, BotoCoreError | TimeoutError | OSError):
        return "is AWS_ENDPOINT_URL right, and the network there?"
    return CHECK_KEYS


async def probe_object(fs: AsyncFileSystem, key: str, content: bytes, limit: float) -> float:
    """The same for an object; a second of the limit is left to delete it."""
    seconds = 0.0
    try:
        async with asyncio.timeout(limit - 1):
            if isinstance(fs, S3FileSystem):  # some servers make a bucket that is not there
                with suppress(PermissionError):  # who may write need not have the right to ask
                    await fs._call_s3("head_bucket", Bucket=key.partition("/")[0])
            start = time.perf_counter()
            await fs._pipe_file(key, content)
            seconds = time.perf_counter() - start
            if await fs._cat_file(key) != content:
                raise CloudError(f"{key} reads back as something else; look at the storage")
    finally:
        try:
            async with asyncio.timeout(1):
                await fs._rm_file(key)
        except Exception as error:
            if seconds:
                found = f"{key} was written, and cannot be deleted: {explain(error, 1)}"
                raise CloudError(f"{found}; delete it, and allow DELETE there") from error
    return seconds


def probe_folder(folder: Path, content: bytes) -> float:
    """The same for a folder, or the nearest above it that is there."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    start = time.perf_counter()
    with tempfile.TemporaryFile(dir=place) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - start


def upload(plan: Plan) -> Finding:
    """How long a checkpoint takes, against the time from one to the next."""
    if not plan.upload_rate:
        return Finding("ok", "no uploads are planned")
    epoch, _ = plan.num_steps
    each = plan.setting("upload_interval", 1)
    interval, seconds = each * epoch * plan.step_seconds, plan.checkpoint_bytes / plan.upload_rate
    found = (
        f"{size(plan.checkpoint_bytes)} at {size(plan.upload_rate)}/s or more: up to "
        f"{duration(seconds)}, every {duration(interval)}"
    )
    if seconds > interval:
        enough = math.ceil(seconds / max(1e-9, epoch * plan.step_seconds))
        return Finding("warning", found, f"set trainer.upload_interval to {enough} or more")
    return Finding("ok", found)
