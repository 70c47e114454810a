"""What this chapter's measurements share: the machine, its processes, a slow network, medians."""

import argparse
import contextlib
import importlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch
from jsonargparse import ArgumentParser
from src.config import HelpFormatter
from src.config_errors import explain
from src.errors import UserError

CHAPTER = Path(__file__).resolve().parent
PACKAGES = ("torch", "tensorstore", "zarr", "xarray", "s3fs", "numpy")


def machine() -> dict[str, Any]:
    """Hardware, versions and date, for a log."""
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        model = found[1] if found else model
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": model,
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
    }


class Processes:
    """Memory and processor time of this process and its children, watched from a thread.

    Shared pages count in each process, as in ``RES`` of top.
    """

    def __enter__(self) -> "Processes":
        self.peak_mb, self.seconds = 0.0, 0.0
        self._cpu: dict[int, float] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end.set()
        self._thread.join()
        self.seconds = sum(self._cpu.values())

    def _watch(self) -> None:
        me = psutil.Process()
        start = sum(me.cpu_times()[:2])
        while True:
            total = 0
            for process in [me, *me.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    total += process.memory_info().rss
                    used = sum(process.cpu_times()[:2])
                    self._cpu[process.pid] = used - start if process == me else used
            self.peak_mb = max(self.peak_mb, total / 1e6)
            if self._end.wait(1.0):
                return


def check_delay(delay: str) -> None:
    """Raise UserError for a delay that slow_network.py would not take."""
    if not re.fullmatch(r"\d+(\.\d+)?(us|ms|s)", delay):
        raise UserError(f"delay: {delay!r} is not a number with a unit; allowed: such as 30ms, 1s")


@contextlib.contextmanager
def slow_network(delay: str, endpoint: str = "") -> Iterator[dict[str, str]]:
    """The variables of a way to the embedded server on which each request takes longer."""
    check_delay(delay)
    if not float(delay.rstrip("mus")):
        yield {}
        return
    command = [sys.executable, "slow_network.py", "--delay", delay]
    command += ["--endpoint", endpoint] if endpoint else []
    with subprocess.Popen(command, cwd=CHAPTER, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            url = process.stdout.readline().split()
            if len(url) < 3:
                raise UserError(f"delay: slow_network.py did not start: {' '.join(url)}")
            yield {"EMBEDDED_S3_ENDPOINT": url[2]}
        finally:
            process.terminate()
            process.communicate()  # it says what has come through, and would miss a listener


def same_machine(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two runs may stand in one table: the same hardware and versions, on any day."""
    keys = (set(one) | set(other)) - {"date", "memory_gb"}
    return all(one.get(key) == other.get(key) for key in keys)


def run_command(function: Callable[..., Any], description: str | None) -> Any:
    """Call a function with the arguments of the command line; UserError for wrong ones."""
    parser = ArgumentParser(
        description=description,
        formatter_class=HelpFormatter,
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_function_arguments(function, as_group=False)
    try:
        arguments = parser.parse_args()
    except argparse.ArgumentError as error:
        raise UserError(explain(str(error), parser)) from error
    return function(**arguments.as_dict())


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest value."""
    return {"median": median(values), "min": min(values), "max": max(values)}


def import_path(path: str) -> Any:
    """What a dotted path names. Raises ImportError or AttributeError."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
