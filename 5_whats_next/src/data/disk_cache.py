"""A cache on the local disk: bounded, kept between runs, shared by all processes of a machine.

A folder mirrors the objects of a store, each followed by its checksum in the way of Zarr's crc32c
codec. So TensorStore reads the folder as it reads any store, and finds every bit that has changed.
A file appears whole or not at all, and any process may delete it at any time: whoever misses one
fetches it again. No index, no server, no lock between readers.

Whoever writes a store anew has to delete its cache: nobody asks the store whether it has changed.
"""

import contextlib
import hashlib
import json
import os
import struct
import threading
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import filelock
import google_crc32c
import numpy as np
import tensorstore as ts

from src.data.cloud_errors import CloudError
from src.data.fast_source import Place, Source, key_value_store_of, wait_for

CHECKED_EVERY = 1 / 16  # of the limit: after so many bytes a process looks at the folder
ABANDONED = 3600.0  # seconds after which nobody is still writing a file
KEPT = 7 / 8  # of the limit, when something has to go


class CacheFolder:
    """Files that live as long as there is room.

    P processes that write keep the folder below limit * (7/8 + P/16): two never exceed it.

    Args:
        path: the folder, on a local disk.
        limit: bytes.
    """

    def __init__(self, path: Path, limit: float) -> None:
        self.path, self.limit = path, limit
        self.written = limit  # by this process since it looked; it looks at the first write
        try:
            path.mkdir(parents=True, exist_ok=True)
            NamedTemporaryFile(dir=path).close()
        except OSError as error:
            raise CloudError(
                f"data.dataset.disk_cache: {error}; allowed: a writable folder"
            ) from error

    def write(self, place: Path, content: bytes) -> None:
        """Put a file there, whole; on a full disk it is left out."""
        self.written += len(content)
        if self.written >= self.limit * CHECKED_EVERY:
            self.evict()
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=self.path, prefix="new-", delete=False) as file:
                try:
                    file.write(content)
                except BaseException:
                    Path(file.name).unlink()
                    raise
            Path(file.name).replace(place)
        except OSError as error:
            warnings.warn(f"{self.path}: {error}; going on without the cache", stacklevel=2)

    def evict(self) -> None:
        """Delete what was not used for longest, if there is too much; one process at a time.

        The others wait, instead of writing meanwhile what nobody counts.
        """
        with filelock.FileLock(self.path / "lock"):
            self.written = 0
            found = []
            for file in self.path.rglob("*"):
                with contextlib.suppress(OSError):  # somebody else was faster
                    about = file.stat()
                    # Others write theirs just now; what is old is left from a process that died.
                    new = file.name.startswith("new-") and time.time() - about.st_mtime < ABANDONED
                    if file.is_file() and not new and file.name not in ("lock", "zarr.json"):
                        found.append((about.st_mtime, about.st_size, file))
            total = sum(size for _, size, _ in found)
            for _, size, file in sorted(found):
                if total <= self.limit * KEPT:
                    break
                file.unlink(missing_ok=True)
                total -= size


class CachedSource(Source):
    """A source whose objects are read from a folder, and fetched into it when they are not there.

    Args:
        source: the store.
        url: the store's name, under which the folder knows it.
        folder: the cache.
        patience: seconds that a request may take.
        threads: readings that are under way at the same time.
    """

    def __init__(
        self, source: Source, url: str, folder: CacheFolder, patience: float, threads: int
    ) -> None:
        self.remote, self.folder, self.patience = source, folder, patience
        self.url = url
        self.stores = [key_value_store_of(array) for array in source.arrays]
        self.places = [self.mirror(array) for array in source.arrays]
        local = [open_mirror(place) for place in self.places]
        super().__init__(local, source.rows)
        self.driver = source.driver  # its requests are counted, the disk's are not
        self.pool = ThreadPoolExecutor(threads)
        self.coming: dict[Path, ts.Future] = {}
        self.lock = threading.Lock()

    def mirror(self, array: ts.TensorStore) -> Path:
        """The folder of an array, with metadata that let TensorStore check each object."""
        spec = array.spec().to_json()
        text = key_value_store_of(array)["zarr.json"] if spec["driver"] == "zarr3" else b"{}"
        metadata = json.loads(text)
        keys = metadata.get("chunk_key_encoding", {})
        if (
            keys.get("name") != "default"
            or keys.get("configuration", {}).get("separator", "/") != "/"
        ):
            raise CloudError(
                "data.dataset.disk_cache: allowed: stores in Zarr v3 with the usual names of chunks"
            )
        metadata["codecs"].append({"name": "crc32c"})
        name = [self.url, spec["kvstore"]["path"], metadata]  # servers may move to another port
        mark = hashlib.sha256(json.dumps(name).encode()).hexdigest()
        place = self.folder.path / mark[:16]
        self.folder.write(place / "zarr.json", json.dumps(metadata).encode())
        return place

    def read(self, places: Sequence[Place]) -> Future:
        """Parts from the folder; what it lacks is fetched first."""
        return self.pool.submit(self.load, places)

    def load(self, places: Sequence[Place]) -> list[np.ndarray]:
        """The same, and wait for it."""
        wanted = self.objects(places)
        for _ in range(2):
            self.fetch(wanted)
            try:
                return wait_for(super().read(places), self.patience)
            except ValueError:  # one is broken, or was deleted by others meanwhile
                self.drop_broken(wanted)
        # The disk is full, or others delete faster than this process reads; or it is the store.
        return wait_for(self.remote.read(places), self.patience)

    def fetch(self, wanted: set[tuple[int, str]]) -> None:
        """Bring objects into the folder."""
        started = {}
        for number, key in wanted:
            file = self.places[number] / key
            try:
                os.utime(file)  # used now
            except OSError:
                with self.lock:
                    if file not in self.coming:
                        if file.exists():  # it came this moment: another thread fetched it
                            continue
                        self.coming[file] = self.stores[number].read(key)
                    started[file] = (self.coming[file], number, key)
        try:
            for file, (future, number, key) in started.items():
                found = self.wait_for_object(future, number, key)
                if found.state == "value" and not file.exists():  # another thread may have it, too
                    self.folder.write(file, found.value + checksum(found.value))
        finally:  # also of those that are still on their way when one has failed
            with self.lock:
                for file in started:
                    self.coming.pop(file, None)

    def wait_for_object(self, future: ts.Future, number: int, key: str) -> Any:
        """The object; an error says which one it is about, as those of arrays do."""
        try:
            return wait_for(future, self.patience)
        except ValueError as error:
            code, _, text = str(error).partition(": ")
            name = f"{self.stores[number].path}{key}"
            raise ValueError(f'{code}: Error reading "{name}": {text}') from error

    def drop_broken(self, wanted: set[tuple[int, str]]) -> None:
        """Delete the objects that are not what was written."""
        for number, key in wanted:
            file = self.places[number] / key
            with contextlib.suppress(OSError):
                content = file.read_bytes()
                if content[-4:] != checksum(content[:-4]):
                    file.unlink()


def checksum(content: bytes) -> bytes:
    """As Zarr's crc32c codec puts it behind a chunk."""
    return struct.pack("<I", google_crc32c.value(content))


def open_mirror(place: Path) -> ts.TensorStore:
    """The objects of a folder as an array, of which parts are missing."""
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": f"{place.resolve()}/"},
        "fill_missing_data_reads": False,
    }
    return ts.open(spec, read=True, open=True).result()
