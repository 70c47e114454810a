"""Copy the variables of a store into one array, for FastDataset's ``packed``.

  uv run python pack_store.py --url s3://embedded/cube.zarr --chunk [12,64,64]

What is read together then lies in one object: a window takes one request where it took one for each
variable. The copy lies in the store and takes as much room again. An interrupted copy goes on where
it stopped.
"""

import sys

from jsonargparse import auto_cli
from src.config import HelpFormatter
from src.data.pack import pack
from src.errors import UserError, one_line_errors


def main(
    url: str,
    chunk: tuple[int, int, int] = (12, 64, 64),
    variables: list[str] | None = None,
    threads: int = 2,
    overwrite: bool = False,
) -> None:
    """Copy a store's variables into one array.

    Args:
        url: the store.
        chunk: months, latitudes and longitudes of a chunk.
        variables: which variables; null takes all.
        threads: chunks that are copied at the same time.
        overwrite: replace another copy.
    """
    if min(*chunk, threads) < 1:
        raise UserError(f"chunk, threads: {[*chunk]}, {threads}; allowed: from 1")
    pack(url, chunk, variables, threads, overwrite)
    print(f"finished: {url}/packed/fields")


if __name__ == "__main__":
    with one_line_errors():
        auto_cli(main, description=__doc__, formatter_class=HelpFormatter, as_positional=False)
        sys.exit()
