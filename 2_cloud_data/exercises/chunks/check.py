"""Does each copy of the array keep to its limits of requests, bytes and objects?"""

import math
from types import ModuleType

from chunk_size import Access

SHAPE = (1200, 720, 1440)
LIMITS = {  # what is read; requests and megabytes that it may cost in the mean
    "WINDOWS": ((12, 16, 32), 4, 2.0),
    "MAPS": ((1, 720, 1440), 4, 5.0),
    "SERIES": ((1200, 1, 1), 2, 0.5),
}
MOST_OBJECTS = 300_000


def check(answer: ModuleType) -> None:
    """Raises AssertionError with what is wrong."""
    for name, (window, most_requests, most_megabytes) in LIMITS.items():
        chunk = getattr(answer, name)
        sizes = chunk if isinstance(chunk, tuple | list) else ()
        whole = len(sizes) == 3 and all(isinstance(size, int) and size > 0 for size in sizes)
        assert whole, f"{name} is {chunk}, and not three whole numbers from 1: (time, lat, lon)"
        access = Access(window, SHAPE, (1, 1, 1), 4, latency=0.03, bandwidth=1e8, concurrency=1)
        requests = access.count(chunk).mean
        megabytes = requests * access.num_bytes(chunk) / 1e6
        wanted = math.prod(window) * 4 / 1e6
        cost = f"{name} {'x'.join(map(str, chunk))}: {requests:,.1f} requests, {megabytes:,.2f} MB"
        assert requests <= most_requests, (
            f"{cost}; allowed: {most_requests} requests. Each waits for its answer, however small "
            "it is"
        )
        assert megabytes <= most_megabytes, (
            f"{cost}; allowed: {most_megabytes:g} MB. Only {wanted:.2g} MB of them are wanted, the "
            "rest is read and thrown away"
        )
        objects = math.prod(access.num_objects(chunk))
        assert objects <= MOST_OBJECTS, (
            f"{name} {'x'.join(map(str, chunk))}: {objects:,} objects of "
            f"{access.num_bytes(chunk):,} bytes; allowed: {MOST_OBJECTS:,}. Each is a request to "
            "write it, and an entry to list, copy and pay for"
        )
