"""Object storage in a minute: write an object, list it, read it or parts of it, delete it.

uv run python example_cloud_access.py
"""

from utils import timed

from src.data.store import file_system
from src.run.errors import one_line_errors

FOLDER = "s3://embedded/example"
SIZE = 8_192_000  # bytes
PART = 4_096
NUM_PARTS = 100


def main() -> None:
    """Run each operation against the embedded S3 server, and print what it takes."""
    # With your own bucket: fsspec.filesystem("s3"), or "gs" for Google, "abfs" for Azure. They find
    # the credentials in the environment, and the lines below stay as they are.
    fs, _ = file_system(FOLDER)
    url = f"{FOLDER}/numbers.bin"
    content = bytes(range(256)) * (SIZE // 256)

    # An object is written as a whole: a reader sees all of it or nothing.
    timed(f"put {SIZE / 1e6:.1f} MB", lambda: fs.pipe_file(url, content))
    # A bucket has no folders, only names that start alike; fsspec shows them as folders.
    print("list:", *fs.ls(FOLDER, detail=False))
    timed(f"get {SIZE / 1e6:.1f} MB", lambda: fs.cat_file(url))
    # Zarr with shards, and NetCDF over a network, read ranges of bytes.
    timed(
        f"get a range of {PART} bytes",
        lambda: fs.cat_file(url, start=PART, end=2 * PART),
    )
    print("bytes 1000 to 1003:", *fs.cat_file(url, start=1000, end=1004))

    # Over a network a small request is mostly waiting, so send many at once.
    starts = range(0, NUM_PARTS * PART, PART)
    ends = range(PART, (NUM_PARTS + 1) * PART, PART)
    timed(
        f"get {NUM_PARTS} ranges, one after the other",
        lambda: [fs.cat_file(url, start=start, end=start + PART) for start in starts],
    )
    # Without on_error, a range that failed would be an exception in the list of results.
    timed(
        f"get {NUM_PARTS} ranges, all at the same time",
        lambda: fs.cat_ranges([url] * NUM_PARTS, starts, ends, on_error="raise"),
    )
    fs.rm(FOLDER, recursive=True)


if __name__ == "__main__":
    with one_line_errors():
        main()
