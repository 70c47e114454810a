"""The readers that are compared, and how each is tuned: data, no code.

Where a library's documentation advises a setting, its page is named. Numbers of workers and other
knobs were tried in short runs on 2 cores, each library alone; what was fastest stands here. Change
any of them with ``--settings``.
"""

from dataclasses import dataclass, field
from typing import Any

Settings = dict[str, Any]


@dataclass(frozen=True)
class Peer:
    """A row of the tables.

    Args:
        reader: a function of readers.py or shard_readers.py.
        settings: its arguments after the task.
        reads: what it reads, for the table.
        copy: the copy that it needs first; one of copies.COPIES.
        copy_settings: how that copy is written.
        imports: modules that have to be there; they are imported before the clock starts.
    """

    reader: str
    settings: Settings
    reads: str
    copy: str = ""
    copy_settings: Settings = field(default_factory=dict)
    imports: tuple[str, ...] = ()


# What the others are compared with: their names in PEERS.
RAW, RAW_MONTHS, OURS, STREAM = "raw GETs", "raw GETs of months", "FastDataset", "ChunkStream"

LITDATA: Settings = {
    "reads": "own shards, zstd",
    "copy": "litdata",
    # "What chunk_bytes should I use?" and "Use compression" in litdata's README.
    "copy_settings": {"chunk_bytes": "64MB", "compression": "zstd", "num_workers": 2},
    "imports": ("litdata",),
}
ZARR: Settings = {"reads": "packed copy", "copy": "packed", "imports": ("zarr", "obstore")}

PEERS: dict[str, Peer] = {
    RAW: Peer(
        "raw_gets",
        {"batches_ahead": 8, "concurrency": 128},
        "packed copy, nothing decoded",
        copy="packed",
        imports=("tensorstore",),
    ),
    RAW_MONTHS: Peer(
        "raw_gets",
        {"batches_ahead": 16, "concurrency": 128, "months": True},
        "packed copy, a month in an object, nothing decoded",
        copy="months",
        imports=("tensorstore",),
    ),
    OURS: Peer(
        "fast_dataset",
        {"batches_ahead": 8, "concurrency": 128},  # this chapter's README
        "packed copy",
        copy="packed",
        imports=("src.data.fast_dataset", "s3fs"),
    ),
    STREAM: Peer(
        "chunk_stream",
        {"packed": "months", "batches_ahead": 16, "concurrency": 128},
        "packed copy, a month in an object",
        copy="months",
        imports=("src.data.chunk_stream", "s3fs"),
    ),
    # Chunks are fetched ahead by a thread, with workers or without. Without them it was as fast or
    # faster at 0 ms, with two of them a little faster at 30 ms: so there are two rows.
    "litdata": Peer("litdata", {"num_workers": 2, "max_pre_download": 4}, **LITDATA),
    "litdata (no workers)": Peer("litdata", {"num_workers": 0, "max_pre_download": 4}, **LITDATA),
    "mosaicml-streaming": Peer(
        "mosaicml",
        # 0 and 1 worker were slower. "Performance Tuning" in its documentation advises to raise
        # predownload, 8 batches by default; 256 to 4096 samples made little difference.
        {"num_workers": 2, "predownload": 1024},
        "own shards, zstd",
        copy="mosaicml",
        copy_settings={"compression": "zstd", "size_limit": "64mb"},
        imports=("streaming",),
    ),
    # All requests of a batch at the same time. Two workers fetch ahead: twice as fast at 30 ms, a
    # little slower at 0 ms.
    "zarr + obstore": Peer("zarr_alone", {"num_workers": 2, "backend": "obstore"}, **ZARR),
    "zarr + obstore (no workers)": Peer(
        "zarr_alone", {"num_workers": 0, "backend": "obstore"}, **ZARR
    ),
    "zarr + s3fs": Peer(
        "zarr_alone",
        {"num_workers": 2, "backend": "s3fs"},
        **ZARR | {"imports": ("zarr", "s3fs")},
    ),
    "xbatcher": Peer(
        "xbatcher",
        # After earth-mover/dataloader-demo: dask threads in workers that
        # are started by forkserver. Of 0, 2 and 4 workers, 4 were fastest at 30 ms.
        {"num_workers": 4, "dask_threads": 4, "preload": True, "prefetch_factor": 3},
        "the store as it is",
        imports=("xbatcher",),
    ),
    "xarray + dask": Peer(
        "xarray_dask",
        {"num_workers": 2, "dask_threads": 4},  # 0 workers were slower at 30 ms
        "the store as it is",
        imports=("xarray", "dask"),
    ),
}
