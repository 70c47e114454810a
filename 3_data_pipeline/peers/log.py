"""The log of the benchmark: lines of JSON that say what was done, with what, and where."""

import contextlib
import hashlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any

from benchmark_datapipeline_configurations import read_log
from utils import machine

PACKAGES = ("litdata", "mosaicml-streaming", "xbatcher", "dask", "obstore", "fsspec")
WHERE = ("processor", "cores", "memory_gb", "system", "python", "torch", "numpy", "tensorstore")
Line = dict[str, Any]


def machine_and_versions() -> dict[str, Any]:
    """Hardware and versions, those of the peers included; null for a peer that is missing."""
    found = machine()
    for name in PACKAGES:
        found[name] = None
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def fingerprint(*parts: Any) -> str:
    """The same for the same parts, and in practice for no others."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


class Log:
    """Lines that are added at once, so that an interrupt loses no more than the step it hits.

    A step has a key; one that is there without an error need not be done again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[Line] = read_log(path)

    def find(self, kind: str, **wanted: Any) -> list[Line]:
        """The lines of a kind that have these values."""
        wanted["kind"] = kind
        return [line for line in self.lines if wanted.items() <= line.items()]

    def done(self, kind: str, **wanted: Any) -> bool:
        return any("error" not in line for line in self.find(kind, **wanted))

    def add(self, line: Line) -> None:
        self.lines.append(line)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
