"""Object storage in a minute: put, list, read a part, and what is not a file system about it.

  uv run python example_cloud_access.py

It talks to the S3 server that this chapter starts by itself. fsspec gives local disks, S3, Google
Cloud Storage, Azure and http the same methods, so nothing below but the address names S3.
"""

import sys

from src.errors import one_line_errors
from utils import embedded_file_system, embedded_url, timed

SIZE = 8_000_000  # bytes
PART = 4_000


def main() -> int:
    """Show each operation with what it asked for. Returns the exit code."""
    fs, url = embedded_file_system(), embedded_url("example/numbers.bin")
    content = bytes(range(256)) * (SIZE // 256)

    print("An object is written whole. There is no half an object, and none that grows:")
    with timed() as put:
        fs.pipe(url, content)
    print(f"  put   {len(content) / 1e6:.1f} MB in {1e3 * put.seconds:.0f} ms")

    print("Its name may look like a path, but a bucket is flat; a folder is a common prefix:")
    print(f"  list  {fs.ls(embedded_url('example'), detail=False)}")

    print("A part of it can be read by its range of bytes. Zarr and this tutorial live on that:")
    with timed() as whole:
        fs.cat_file(url)
    with timed() as part:
        middle = fs.cat_file(url, start=SIZE // 2, end=SIZE // 2 + PART)
    assert middle == content[SIZE // 2 : SIZE // 2 + PART]
    print(f"  get   {SIZE / 1e6:.1f} MB in {1e3 * whole.seconds:.1f} ms")
    print(f"  get   {PART / 1e3:.1f} kB of them in {1e3 * part.seconds:.1f} ms")

    print("A request takes its time however small it is. So ask for many at once:")
    ranges = [PART * number for number in range(100)]
    with timed() as serial:
        for start in ranges:
            fs.cat_file(url, start=start, end=start + PART)
    with timed() as together:
        fs.cat_ranges([url] * len(ranges), ranges, [start + PART for start in ranges])
    print(f"  get   {len(ranges)} parts one after the other in {1e3 * serial.seconds:.0f} ms")
    print(f"  get   {len(ranges)} parts at the same time in {1e3 * together.seconds:.0f} ms")

    fs.rm(url)
    return 0


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
