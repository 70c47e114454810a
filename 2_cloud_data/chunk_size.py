r"""How many chunks and bytes a window of an array costs, and which chunks make it cheap.

  uv run python chunk_size.py                              a 64 x 64 image, chunks 8x8 to 1024x1024
  uv run python chunk_size.py --plot output/chunk_size.png the same, also as a picture
  uv run python chunk_size.py --window 12 16 32 --shape 1200 720 1440 --itemsize 4 --variables 4 \
      --stride 1 1 10 --recommend                          which chunks and shards to write

A store hands out whole chunks. Small ones fit a window closely, but each is a request that waits
for its answer; of large ones a window needs few, but most of their bytes are not its own.
Bytes are counted before compression, and chunks at the edge of an array as full. Time is a model,
chunks x latency / concurrency + bytes / bandwidth, for a loader that always has that many requests
in flight, those of later windows among them. With more than one it is an upper limit: transfers
hide behind waits, and at best only the larger of the two terms remains.
"""

import argparse
import itertools
import math
import sys
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple, NoReturn

import numpy as np
from src.chunk_plot import EXTREMES, KINDS, MEANS, Row, label, picture_file, plot_costs, print_table
from src.errors import UserError, one_line_errors

Shape = tuple[int, ...]  # a number for each axis
LARGEST = 10_000_000  # positions along an axis: all of them are looked at
CHUNK_BYTES = 2**14, 2**24  # worth a request, and workers can hold some of them
SHARD_BYTES = 2**23, 2**26  # who writes a shard holds all of it in memory
MANY_OBJECTS = 10_000  # S3 lists 1,000 in one request


class Counts(NamedTuple):
    """Chunks that a window needs: at least, at most, and in the mean over all windows."""

    minimal: int
    maximal: int
    mean: float


def chunks_touched(start: np.ndarray, window: int, chunk: int) -> np.ndarray:
    """How many chunks of an axis hold the elements from ``start`` to ``start + window - 1``."""
    return (start + window - 1) // chunk - start // chunk + 1


@cache
def count_along(window: int, chunk: int, stride: int, length: int | None) -> Counts:
    """The counts of one axis, over all windows that start at multiples of the stride.

    It looks at every window, so it is exact for any stride and length. With stride 1 and no end
    the results are ceil(w / c), 1 + ceil((w - 1) / c) and 1 + (w - 1) / c.
    """
    # Without an end, windows meet the chunks in the same way again after this many elements.
    stop = math.lcm(stride, chunk) if length is None else length - window + 1
    touched = chunks_touched(np.arange(0, stop, stride), window, chunk)
    return Counts(int(touched.min()), int(touched.max()), float(touched.mean()))


@dataclass(frozen=True)
class Access:
    """What is read, and through which network."""

    window: Shape
    shape: tuple[int | None, ...]  # of the array; None along an axis without end
    stride: Shape  # aligned windows start at multiples of it
    element_bytes: int  # at one position, of all variables
    latency: float  # seconds until an answer begins
    bandwidth: float  # bytes per second, of all requests together
    concurrency: int  # requests in flight

    def count(self, chunk: Shape, stride: Shape | None = None) -> Counts:
        """Chunks for windows at multiples of the stride; without one, for windows anywhere.

        Where a window starts along one axis says nothing about the others. So the least numbers
        along the axes multiply, and the greatest, and the means.
        """
        axes = zip(self.window, chunk, stride or (1,) * len(chunk), self.shape, strict=True)
        minimal, maximal, mean = zip(*(count_along(*axis) for axis in axes), strict=True)
        return Counts(math.prod(minimal), math.prod(maximal), math.prod(mean))

    def num_bytes(self, chunk: Shape) -> int:
        return math.prod(chunk) * self.element_bytes

    def num_objects(self, shard: Shape) -> Shape:
        """Along each axis; one without end counts as a very long one."""
        ends = (length or LARGEST for length in self.shape)
        return tuple(math.ceil(end / size) for end, size in zip(ends, shard, strict=True))

    def scaled(self, shape: Shape, factor: float) -> Shape:
        """A multiple or a part of a shape, as far as the array goes."""
        ends = (length or LARGEST for length in self.shape)
        return tuple(min(math.ceil(s * factor), end) for s, end in zip(shape, ends, strict=True))

    def seconds(self, chunks: float, chunk: Shape) -> float:
        """The time that so many chunks cost, by the model on top of this file."""
        waiting = chunks * self.latency / self.concurrency
        return waiting + chunks * self.num_bytes(chunk) / self.bandwidth

    def costs(self, chunk: Shape) -> Row:
        """Chunks, bytes and milliseconds for one window."""
        anywhere, aligned = self.count(chunk), self.count(chunk, self.stride)
        row: Row = {"chunk_size": label(chunk)}
        for name, chunks in zip(KINDS, (*anywhere, aligned.mean), strict=True):
            row[f"{name}_chunks"] = chunks
            row[f"{name}_bytes"] = chunks * self.num_bytes(chunk)
            row[f"{name}_ms"] = 1000 * self.seconds(chunks, chunk)
        return row


def best_chunk(access: Access, stride: Shape | None = None) -> Shape:
    """The chunk that costs windows at multiples of the stride least; of equals the smallest.

    Of CHUNK_BYTES, and along each axis the window times a power of two, or the whole axis.
    """
    most = max(CHUNK_BYTES[1], access.element_bytes)
    ends = [length or most // access.element_bytes for length in access.shape]
    least = min(CHUNK_BYTES[0], access.num_bytes(tuple(ends)))  # a small array may be one chunk
    sizes = [
        {end} | {s for n in range(-24, 24) if (s := math.ceil(window * 2.0**n)) <= end}
        for window, end in zip(access.window, ends, strict=True)
    ]
    tried = [c for c in itertools.product(*sizes) if least <= access.num_bytes(c) <= most]
    times = [access.seconds(access.count(chunk, stride).mean, chunk) for chunk in tried]
    return min(zip(times, map(access.num_bytes, tried), tried, strict=True))[-1]


def best_shard(access: Access, chunk: Shape) -> Shape:
    """The multiple of the chunk that one object should hold.

    It doubles where most objects are: to SHARD_BYTES[0], if too many remain to SHARD_BYTES[1].
    """
    shard = chunk
    while max(objects := access.num_objects(shard)) > 1:
        too_many = math.prod(objects) > MANY_OBJECTS
        if access.num_bytes(shard) > (SHARD_BYTES[1] // 2 if too_many else SHARD_BYTES[0] - 1):
            break
        axis = objects.index(max(objects))
        shard = (*shard[:axis], 2 * shard[axis], *shard[axis + 1 :])
    return shard


def recommend(access: Access, stride: Shape | None, variables: int) -> None:
    """Print the chunk and the shard to write, and why not others."""
    chunk = best_chunk(access, stride)
    windows = f"windows at multiples of {label(stride)}" if stride else "random windows"
    print(f"\nchunk {label(chunk)} for {windows}: a smaller one costs requests, a larger one bytes")
    near = dict.fromkeys(access.scaled(chunk, factor) for factor in (0.5, 1, 2))
    print_table([access.costs(shape) for shape in near], MEANS)
    first = (variables,) if variables > 1 else ()
    shard = best_shard(access, chunk)
    if shard == chunk:
        print(f"\nzarr.create_array(..., chunks={(*first, *chunk)})")
        return
    objects = [math.prod(access.num_objects(shape)) for shape in (chunk, shard)]
    print(f"\nshard {label(shard)}, {access.num_bytes(shard)} bytes: many chunks in one object")
    if None not in access.shape:
        print(f"{objects[1]} objects instead of {objects[0]} to write, list, copy and pay for.")
    print(
        "Readers fetch its chunks by byte range; zarr-python 3.1 fetches its index too, each time:"
    )
    print(f"{access.count(shard, stride).mean:.2f} requests more for a window.")
    print(f"\nzarr.create_array(..., chunks={(*first, *chunk)}, shards={(*first, *shard)})")


def whole(text: str) -> int:
    if text.isdecimal() and 1 <= int(text) <= LARGEST:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is outside; allowed: whole numbers 1 to {LARGEST}")


def whole_shape(text: str) -> Shape:
    return tuple(whole(word) for word in text.split("x"))


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message.removeprefix('argument ')}; see --help")


def make_parser() -> Parser:
    style = argparse.RawDescriptionHelpFormatter
    parser = Parser(description=__doc__, formatter_class=style, allow_abbrev=False)
    add = partial(parser.add_argument, type=whole, metavar="N")
    each = partial(add, nargs="+", default=[])
    each("--window", default=[64, 64], help="elements along each axis; default: 64 64")
    each("--shape", help="the same of the array; default: without end")
    each("--stride", help="aligned windows start at its multiples; default: the window's size")
    each("--chunks", type=whole_shape, help="12x16x32, or 8 for all; default: window / 8 to x 16")
    add("--itemsize", default=1, help="bytes of a number; default: 1")
    add("--variables", default=1, help="together in each chunk, along axis 0; default: 1")
    add("--latency", default=30, help="milliseconds until an answer begins; default: 30")
    add("--bandwidth", default=100, help="MB/s, of all requests together; default: 100")
    add("--concurrency", default=1, help="requests in flight; default: 1")
    add("--plot", type=picture_file, metavar="FILE", help="also draw the tables")
    parser.add_argument("--recommend", action="store_true", help="find a chunk and a shard shape")
    return parser


def on_axes(name: str, shape: Shape | list[int], window: Shape) -> Shape:
    """The shape, if it has the axes of the window; else raises UserError."""
    if len(shape) != len(window):
        raise UserError(f"{name}: {label(shape)}; allowed: {len(window)} numbers, as in --window")
    return tuple(shape)


def make_access(given: argparse.Namespace) -> Access:
    """What the arguments describe; raises UserError if they do not fit together."""
    window = tuple(given.window)
    shape = on_axes("--shape", given.shape, window) if given.shape else (None,) * len(window)
    for size, length in zip(window, shape, strict=True):
        if length and size > length:
            raise UserError(f"--window: {size} is more than --shape has; allowed: 1 to {length}")
    return Access(
        window=window,
        shape=shape,
        stride=on_axes("--stride", given.stride or window, window),
        element_bytes=given.itemsize * given.variables,
        latency=given.latency / 1e3,
        bandwidth=given.bandwidth * 1e6,
        concurrency=given.concurrency,
    )


def main() -> int:
    """Print the tables, and what else the arguments ask for."""
    given = make_parser().parse_args()
    access = make_access(given)
    asked = [chunk * len(given.window) if len(chunk) == 1 else chunk for chunk in given.chunks]
    chunks = [on_axes("--chunks", chunk, access.window) for chunk in asked]
    chunks = chunks or [access.scaled(access.window, 2.0**n) for n in range(-3, 5)]
    rows = [access.costs(chunk) for chunk in dict.fromkeys(chunks)]
    print_table(rows, EXTREMES)
    print(f"\nmeans, for random windows and for aligned ones (multiples of {label(access.stride)})")
    print_table(rows, MEANS)
    speed = f"{given.latency} ms, {given.bandwidth} MB/s, {given.concurrency} in flight"
    worth = access.latency / access.concurrency * access.bandwidth
    print(f"The times are a model ({speed}): a request costs as much as {worth:.0f} bytes.")
    if given.recommend:
        recommend(access, tuple(given.stride) or None, given.variables)
    if given.plot:
        plot_costs(rows, f"window {label(access.window)}; {speed}", given.plot)
        print(f"look at {given.plot}")
    return 0


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
