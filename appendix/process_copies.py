"""Commands in copies of a process that has imported the libraries, which takes up to 20 s."""

import contextlib
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COPIES = multiprocessing.get_context("forkserver")
LIBRARIES = ["lightning.pytorch", "wandb", "s3fs", "xarray", "distributed"]
LIBRARIES += ["matplotlib.pyplot"]


def prepare_copies() -> None:
    """Say what the process imports that is copied; before the first copy."""
    # A process that has used CUDA cannot be copied: this looks for a GPU without it.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    COPIES.set_forkserver_preload(LIBRARIES)


def as_the_only_rank() -> None:
    """What torchrun would set."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def run_command(
    folder: Path, words: Sequence[str], before: Callable[[], Any] | None, log: Path
) -> None:
    """In a process of its own: what ``python WORDS`` would do in this folder."""
    os.setsid()  # so that all its processes can be ended together
    with log.open("wb") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    os.chdir(folder)
    os.environ["WANDB_MODE"] = "disabled"
    if before:
        before()
    sys.path.insert(0, str(folder))
    if words[0] == "-m":
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        # The whole path: processes that the script starts import it.
        runpy.run_path(str(folder / words[0]), run_name="__main__")


class Commands:
    """Commands of the chapters, until a deadline.

    Args:
        output: folder of commands.log, with what they have printed.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        self.deadline = 0.0  # on time.monotonic()

    def run(
        self, chapter: str, *words: str, before: Callable[[], Any] | None = None
    ) -> str:
        """What a command prints; it runs in the chapter's folder, and after ``before``."""
        log = self.output / "command.log"
        log.write_bytes(b"")
        process = COPIES.Process(
            target=run_command, args=(ROOT / chapter, words, before, log)
        )
        process.start()
        group: Any = process.pid
        process.join(self.deadline - time.monotonic())
        timed_out = process.is_alive()
        # With the processes that it has started: they would take the GPU from the next part.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        process.kill()  # it may not have begun a group yet
        process.join()
        output = log.read_text()
        with (self.output / "commands.log").open("a") as commands:
            print(f"{chapter}: {' '.join(words)}\n{output}", file=commands)
        last_line = " ".join(output.splitlines()[-1:])
        if timed_out:
            raise TimeoutError(f"{words[0]}: {last_line}")
        if process.exitcode:
            raise RuntimeError(last_line)
        return output
