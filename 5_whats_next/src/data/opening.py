"""Open a store in a few round trips, and not in twenty.

xarray and zarr ask for one small object, wait, and ask for the next one: 2 s before the first
window if each takes 100 ms. Nearly all of these objects are known beforehand, so here they are
asked for together. What cannot be known, such as the arrays of another's store, is asked for when
it is needed, as ever.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.sync import sync

from src.data.cloud_statistics import group_of
from src.data.cloud_store import METADATA, CheckedStore
from src.data.netcdf import AXES

STATISTICS = {"mean": "0", "std": "0", "has_values": "0/0"}  # the chunks that opening reads
OTHERS = ("count", "climatology")  # of which it reads the metadata


class OpeningStore(CheckedStore):
    """A store that keeps what it has read until ``finish``, and asks for ``expected`` at once.

    Args:
        store: the store to read.
        expected: keys that opening will probably need; one that ends with / is a folder to list.
    """

    def __init__(self, store: CheckedStore, expected: Sequence[str]) -> None:
        super().__init__(
            store._store,
            store.url,
            store.patience,
            store.counts,
            store.writable,
            store.anonymous,
        )
        self._expected = list(expected)
        self._coming: dict[str, asyncio.Task[Any]] = {}
        self._finished = False

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        if self._finished or byte_range:
            return await super().get(key, prototype, byte_range)
        return await self.kept(key)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        if self._finished:
            names = [name async for name in super().list_dir(prefix)]
        else:
            names = await self.kept(f"{prefix.strip('/')}/")
        for name in names:
            yield name

    async def kept(self, key: str) -> Any:
        """The object, or the names in the folder; the first to ask asks for all that is expected.

        An error is not kept: who meets it later, with more patience, tries again.
        """
        for expected in (*self._expected, key):
            task = self._coming.get(expected)
            if not task or (expected == key and failed(task)):
                self._coming[expected] = asyncio.create_task(self.ask(expected))
                self._coming[expected].add_done_callback(failed)  # asyncio would print an error
        self._expected = []
        return await asyncio.shield(self._coming[key])

    async def ask(self, key: str) -> Any:
        if key.endswith("/"):
            return [name async for name in super().list_dir(key.rstrip("/"))]
        return await super().get(key, default_buffer_prototype())

    def finish(self) -> None:
        """From now on each request is made anew; those that nobody waits for end."""

        async def cancel() -> None:
            self._finished = True
            for task in self._coming.values():
                task.cancel()
            await asyncio.gather(*self._coming.values(), return_exceptions=True)
            self._coming.clear()

        sync(cancel())


def failed(task: asyncio.Task[Any]) -> bool:
    """Whether there is an error, which counts as seen now."""
    return task.done() and (task.cancelled() or task.exception() is not None)


def expected_keys(
    names: Sequence[str], train_months: Sequence[int] | None, axes: Sequence[str] = AXES
) -> list[str]:
    """What opening will probably need of a store in Zarr v3, as this project's builds lay it out.

    Args:
        names: arrays, as far as they are known.
        train_months: of the statistics; None if they are not in this store.
        axes: the coordinates.
    """
    groups = [""] if axes else []
    arrays, chunks = [*names, *axes], [f"{axis}/c/0" for axis in axes]
    if train_months:
        group = group_of(train_months)
        groups.append(f"{group}/")
        arrays += [f"{group}/{name}" for name in (*STATISTICS, *OTHERS)]
        chunks += [f"{group}/{name}/c/{chunk}" for name, chunk in STATISTICS.items()]
    found = [f"{group}{file}" for group in groups for file in sorted(METADATA - {".zarray"})]
    return found + [f"{name}/zarr.json" for name in arrays] + chunks + [g or "/" for g in groups]
