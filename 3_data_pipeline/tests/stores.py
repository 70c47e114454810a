"""A small store of four variables on the embedded server, and its packed copy."""

import functools
import os

from build_store import pack

from src.data.build import build
from src.data.cube import cube_fields

URL = f"s3://embedded/small-{os.getpid()}.zarr"  # tests run in two processes
SETTINGS = {"url": URL, "window": (4, 8, 8), "train_stride": (2, 5, 5), "patience": 20}
SETTINGS |= {
    "train_period": ("1900-01", "1901-04"),
    "val_period": ("1901-09", "1901-12"),
}


@functools.cache
def build_small(url: str = URL, packed_months: int | None = 1) -> None:
    build(
        url,
        cube_fields((24, 18, 36), (12, 9, 18)),
        (12, 9, 18),
        ("1900-01", "1901-04"),
    )
    if packed_months:
        pack(url, (packed_months, 9, 9))
