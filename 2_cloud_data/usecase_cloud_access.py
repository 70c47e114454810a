"""Direct access: open a Zarr store lazily, and read one window of it, chunk by chunk.

uv run python usecase_cloud_access.py      the embedded ocean; below, public and 1 km
uv run python usecase_cloud_access.py --url s3://mur-sst/zarr-v1 --anonymous true
"""

from jsonargparse import auto_cli
from utils import timed

from src.data.build import build_ocean
from src.data.fields import open_fields
from src.data.store import OCEAN, open_store
from src.run.config import HelpFormatter
from src.run.errors import one_line_errors


def main(url: str = OCEAN, anonymous: bool = False) -> None:
    """Print what is in the store, and what one window costs.

    Args:
        url: a Zarr store.
        anonymous: read public data, without credentials.
    """
    if url == OCEAN:
        build_ocean()

    # Reads metadata and coordinates only, however large the store is.
    fields, stored = open_fields(open_store(url, anonymous=anonymous))
    for field, about in zip(fields.values(), stored, strict=True):
        print(
            f"{field.name} {dict(field.sizes)}: {field.nbytes / 1e6:.2f} MB, "
            f"in chunks of {about.chunk}"
        )
    # Values are read now: only the chunks that the window touches.
    window = field[:12, :16, :32]
    timed(f"read a window of {window.nbytes / 1e3:.1f} kB", window.load)
    print(f"its mean is {float(window.mean()):.2f} {window.attrs.get('units', '')}")


if __name__ == "__main__":
    with one_line_errors():
        auto_cli(main, description=__doc__, formatter_class=HelpFormatter)
