"""Start one job of run_one.py in a process of its own, and leave nothing of it behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any

from utils import CHAPTER, slow_network

Result = dict[str, Any]
Child = Callable[[dict[str, Any], str, float], Result]
GRACE = 3.0  # seconds
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # workers would otherwise take each other's processors
    "LITDATA_DISABLE_VERSION_CHECK": "1",  # offline
}


def run_child(job: dict[str, Any], delay: str, timeout: float) -> Result:
    """The result of a job, or what it said last; the network is slow meanwhile.

    All temporary files of the job, the caches of the peers among them, are in a folder that is
    removed when it ends; so are all its processes.
    """
    with (
        slow_network(delay) as variables,
        TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        subprocess.Popen(
            [sys.executable, "-m", "peers.run_one"],
            cwd=CHAPTER,
            env=os.environ | ENVIRONMENT | variables | {"TMPDIR": folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            printed, said = process.communicate(json.dumps(job), timeout=timeout)
        except subprocess.TimeoutExpired:
            return {"error": f"not done in {timeout:g} s"}
        finally:
            end_group(process.pid, GRACE if process.poll() is not None else 0.0)
    if process.returncode:
        return {"error": last_words(said) or f"exit code {process.returncode}"}
    return json.loads(printed.splitlines()[-1])


def end_group(group: int, grace: float) -> None:
    """End the processes that a job has started; let them tidy up their semaphores first."""
    deadline = time.monotonic() + grace
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.05)
        os.killpg(group, signal.SIGKILL)


def last_words(said: str) -> str:
    """The line of an error among all that a process has said; some put more lines below it."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [
        line for line in lines if line.split(":")[0].endswith(("Error", "error", "Exception"))
    ]
    return (errors or lines or [""])[-1][:300]
