"""Run scripts of chapters as forks of one process, which has imported what takes long.

Importing torch and lightning takes seconds, again for each script that a test of the texts runs.
Here a process imports them once. It has nothing of a chapter: each script is a fork of it, in the
chapter's folder, and imports the chapter's own modules. ``Forks`` starts that process, which ends
with the one that has started it.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
from functools import cache
from pathlib import Path
from typing import NoReturn

PACKAGES = (
    "dask.array",
    "lightning.pytorch.cli",
    "matplotlib.pyplot",
    "s3fs",
    "wandb",
    "xarray",
    "zarr",
)


class Forks:
    """The process that forks."""

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        command, pipe = [sys.executable, __file__], subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=environment
        )

    def run(self, folder: Path, words: list[str]) -> tuple[int, str]:
        """Exit code and output of a script: its path and its arguments."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps([str(folder), words]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError("the process that forks has ended; its error is above")
        code, output = json.loads(answer)
        return code, output

    def close(self) -> None:
        """End the process, and wait for that."""
        self.process.communicate()


@cache
def forks() -> Forks:
    """Those of this process, from the first call to its end."""
    made = Forks()
    atexit.register(made.close)
    return made


def become(folder: str, words: list[str], output: int) -> NoReturn:
    """Be a Python that has been started with ``words`` in ``folder``."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    sys.argv = words
    sys.path[0] = str(Path(words[0]).resolve().parent)
    code = 0
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    # The end of a Python, but for taking everything apart that has been imported.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def main() -> None:
    """Answer each line of the input, a folder and a command, with a line: exit code and output."""
    for name in PACKAGES:
        importlib.import_module(name)
    gc.freeze()  # no fork looks through all of it for garbage
    for line in sys.stdin:
        with tempfile.TemporaryFile() as output:
            child = os.fork()
            if not child:
                folder, words = json.loads(line)
                become(folder, words, output.fileno())
            _, status = os.waitpid(child, 0)
            output.seek(0)
            code = os.waitstatus_to_exitcode(status)
            print(json.dumps([code, output.read().decode()]), flush=True)
    gc.unfreeze()


if __name__ == "__main__":
    main()
