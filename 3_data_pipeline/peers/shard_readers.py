"""The two peers that stream a copy of their own: litdata and mosaicml-streaming.

Both download shards into a folder on this machine, unpack them, and shuffle between and inside
them. The folder is new in every run: the epoch is cold.
"""

import os
from collections.abc import Iterator, Sequence
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from peers.task import Collate, Task, server
from torch import Tensor
from torch.utils.data import DataLoader

COLUMN = "x"  # of a sample, in both formats
CACHE_PREFIX = "peers_cache_"


class ColumnCollate:
    """Takes the values out of samples that are dictionaries, and collates them."""

    def __init__(self, collate: Collate) -> None:
        self.collate = collate

    def __call__(self, samples: Sequence[dict[str, Any]]) -> Tensor:
        return self.collate([np.asarray(sample[COLUMN]) for sample in samples])


def boto3_options(url: str) -> dict[str, str]:
    """Endpoint and credentials under the names of boto3."""
    if not (own := server(url)):
        return {}
    return {
        "endpoint_url": own["endpoint"],
        "aws_access_key_id": own["key"],
        "aws_secret_access_key": own["secret"],
        "region_name": "us-east-1",
    }


def litdata(task: Task, num_workers: int, max_pre_download: int) -> Iterator[Tensor]:
    """Litdata's StreamingDataset and StreamingDataLoader."""
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    # It fetches with obstore, which refuses plain http, and has no option of its own to allow it.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    with TemporaryDirectory(prefix=CACHE_PREFIX, ignore_cleanup_errors=True) as folder:
        dataset = StreamingDataset(
            task.copy_url("litdata"),
            cache_dir=folder,
            shuffle=True,
            drop_last=False,
            seed=task.seed,
            max_pre_download=max_pre_download,
            storage_options=boto3_options(task.url),
        )
        yield from StreamingDataLoader(
            dataset,
            batch_size=task.batch_size,
            num_workers=num_workers,
            collate_fn=ColumnCollate(Collate(task.mean, task.std)),
        )


def mosaicml(
    task: Task, num_workers: int, predownload: int, shuffle_block_size: int | None = None
) -> Iterator[Tensor]:
    """mosaicml-streaming's StreamingDataset, with PyTorch's DataLoader."""
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    if options := boto3_options(task.url):
        os.environ["S3_ENDPOINT_URL"] = options.pop("endpoint_url")
        os.environ["AWS_DEFAULT_REGION"] = options.pop("region_name")
        os.environ |= {key.upper(): value for key, value in options.items()}
    clean_stale_shared_memory()  # of runs that were cut off
    with TemporaryDirectory(prefix=CACHE_PREFIX, ignore_cleanup_errors=True) as folder:
        dataset = StreamingDataset(
            remote=task.copy_url("mosaicml"),
            local=folder,
            shuffle=True,
            shuffle_seed=task.seed,
            shuffle_block_size=shuffle_block_size,
            batch_size=task.batch_size,
            predownload=predownload,
        )
        for stream in dataset.streams:
            # It has fetched the index. Its connection would be inherited by all workers; two that
            # use it at once get each other's answers, and wait for a minute.
            stream._downloader.clean_up()
        yield from DataLoader(
            dataset,
            batch_size=task.batch_size,
            num_workers=num_workers,
            collate_fn=ColumnCollate(Collate(task.mean, task.std)),
        )
