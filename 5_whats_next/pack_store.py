"""Copy the variables of a store into one array, for FastDataset's ``packed``.

  uv run python pack_store.py --url s3://embedded/cube.zarr --chunk [12,64,64]

What is read together then lies in one object: a window takes one request where it took one for each
variable. The copy lies in the store and takes as much room again. An interrupted copy goes on where
it stopped.
"""

import sys

from src.data.fast_store import packed_path
from src.data.pack import pack
from src.errors import UserError, one_line_errors
from utils import run_command


def main(
    url: str,
    chunk: tuple[int, int, int] = (12, 64, 64),
    variables: list[str] | None = None,
    threads: int = 2,
    overwrite: bool = False,
    name: str = "fields",
) -> None:
    """Copy a store's variables into one array.

    Args:
        url: the store.
        chunk: months, latitudes and longitudes of a chunk.
        variables: which variables; null takes all.
        threads: chunks that are copied at the same time.
        overwrite: replace another copy.
        name: of the copy, for FastDataset's packed; a store may have several, with other chunks.
    """
    if min(*chunk, threads) < 1:
        raise UserError(f"chunk, threads: {[*chunk]}, {threads}; allowed: from 1")
    pack(url, chunk, variables, threads, overwrite, name)
    print(f"finished: {url}/{packed_path(name)}")


if __name__ == "__main__":
    with one_line_errors():
        run_command(main, __doc__)
        sys.exit()
