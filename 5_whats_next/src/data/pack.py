"""Copy the variables of a store into one array, so that a chunk holds all of them.

A window of V variables then takes one V-th of the requests. The copy lies in the store itself, as
``packed/NAME`` (V, T, H, W); axes and statistics stay where they are.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import numpy as np
import zarr
from tqdm import tqdm
from zarr.codecs import BloscCodec

from src.data.cloud_build import existing
from src.data.cloud_errors import CloudError
from src.data.cloud_fields import choose_variables, open_fields_lazily
from src.data.cloud_store import open_store
from src.data.fast_store import packed_path


def pack(
    url: str,
    chunk: Sequence[int],
    variables: Sequence[str] | None = None,
    threads: int = 2,
    overwrite: bool = False,
    name: str = "fields",
) -> None:
    """Write the copy, or what an earlier try has left to do. Raises CloudError for another one.

    Args:
        url: the store, as ``open_store`` takes it.
        chunk: months, latitudes and longitudes of a chunk.
        variables: which variables; None takes all, in order of the alphabet.
        threads: chunks that are copied at the same time.
        overwrite: replace another copy.
        name: of the copy; a store may have several, with different chunks.
    """
    fields = open_fields_lazily(open_store(url))
    names = choose_variables(fields, variables, url)
    shape = fields[names[0]].shape
    chunk = tuple(min(c, n) for c, n in zip(chunk, shape, strict=True))
    store = open_store(url, writable=True)
    group = zarr.open_group(store, mode="r+")
    path = packed_path(name)
    array = group.get(path)
    if not isinstance(array, zarr.Array) or overwrite:
        array = group.create_array(
            path,
            shape=(len(names), *shape),
            chunks=(len(names), *chunk),
            dtype="float32",
            fill_value=np.nan,
            # Numbers that differ little share their first bytes: sorted by byte, they get smaller.
            compressors=BloscCodec(cname="lz4", shuffle="shuffle"),
            dimension_names=("variable", "time", "lat", "lon"),
            attributes={"variables": names, "complete": False},
            config={"write_empty_chunks": True},
            overwrite=overwrite,
        )
    if array.attrs.get("variables") != names or array.chunks != (len(names), *chunk):
        raise CloudError(f"{url}: there is another packed copy; --overwrite replaces it")
    there = existing(store, path)
    grid = product(*(range(-(-n // c)) for n, c in zip(shape, chunk, strict=True)))
    todo = [place for place in grid if "c/0/" + "/".join(map(str, place)) not in there]

    def copy(place: tuple[int, ...]) -> None:
        part = tuple(slice(i * c, (i + 1) * c) for i, c in zip(place, chunk, strict=True))
        values = [fields.variables[name][part].values for name in names]
        array[(slice(None), *part)] = np.stack(values).astype(np.float32)

    settings: dict[str, Any] = {"total": len(todo), "unit": "chunk", "disable": None}
    with ThreadPoolExecutor(threads) as pool:
        try:
            for _ in tqdm(pool.map(copy, todo), desc=f"{url}/{path}", **settings):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    array.attrs["complete"] = True
