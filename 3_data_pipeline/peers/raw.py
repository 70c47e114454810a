"""The ceiling that readers are held against: their objects, fetched and thrown away."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from peers.task import Collate, Task, order
from torch import Tensor

PACKED = "packed/fields"  # a window in each object
MONTHS = "packed/months"  # a month


@dataclass(frozen=True)
class Fetched:
    """Objects as they came, and the shape (V, T, H, W) of what each of them holds."""

    objects: list[bytes]
    shape: tuple[int, ...]
    samples: int

    def __len__(self) -> int:
        return self.samples


def raw_gets(
    task: Task, batches_ahead: int, concurrency: int, months: bool = False
) -> Iterator[Fetched]:
    """The ceiling: the objects that FastDataset reads, or those of ChunkStream, only fetched."""
    import tensorstore as ts
    from src.data.fast_store import key_value_store, read_context

    spec = key_value_store(f"{task.url}/", anonymous=False)
    store = ts.KvStore.open(spec, context=read_context(concurrency, 0, 60.0)).result()
    chunk = (1, *task.shape[1:]) if months else task.window
    path, samples = (MONTHS if months else PACKED), len(task.starts)
    keys = list(dict.fromkeys(key_of(task, index, chunk, path) for index in order(task)))
    samples_each = samples // len(keys)
    size = max(1, task.batch_size // samples_each)
    batches = [keys[i : i + size] for i in range(0, len(keys), size)]
    coming: list[list[ts.Future]] = []
    for number in range(len(batches)):
        for keys in batches[number + len(coming) : number + batches_ahead + 1]:
            coming.append([store.read(key) for key in keys])
        objects = [future.result().value for future in coming.pop(0)]
        yield Fetched(objects, (len(task.variables), *chunk), samples_each * len(objects))


def key_of(task: Task, index: int, chunk: Sequence[int], path: str) -> str:
    """The object with all variables of a window."""
    place = (part.start // size for part, size in zip(task.place(index), chunk, strict=True))
    return f"{path}/c/0/" + "/".join(map(str, place))


def decode(task: Task, fetched: Fetched) -> Tensor:
    """The samples that raw objects hold; it proves that they are the right ones."""
    from numcodecs import blosc

    _, height, width = task.window
    samples = []
    for data in fetched.objects:
        values = np.frombuffer(blosc.decompress(data), np.float32).reshape(fetched.shape)
        rows, columns = (
            range(0, n, size) for n, size in zip(fetched.shape[2:], task.window[1:], strict=True)
        )
        samples += [values[:, :, y : y + height, x : x + width] for y, x in product(rows, columns)]
    return Collate(task.mean, task.std)(samples)
