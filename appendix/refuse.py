"""Run several bad commands of a chapter in one process, and print the line that answers each.

Importing torch takes seconds, so the READMEs' tables of errors share one start. The first argument
is a JSON list of commands, each a list of words: arguments of pytorch_train.py, or a script's name
and its arguments. MASTER_PORT=N before them occupies that port. A command that names output/run_1
finds a run there that has taken one step.
"""

import contextlib
import errno
import functools
import importlib
import io
import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

RUN = "output/run_1"


def call(words: list[str]) -> None:
    """Run a script's main()."""
    name = "pytorch_train" if words[:1] == [] or words[0].startswith("-") else words[0]
    sys.argv = [f"{name}.py", *(words if name == "pytorch_train" else words[1:])]
    script = importlib.import_module(name)
    with contextlib.redirect_stdout(io.StringIO()):
        script.main()


@contextlib.contextmanager
def begun_run(words: list[str]) -> Iterator[tuple[list[str], str]]:
    """Put a run that has begun in the place of output/run_1; also gives the folder it is in."""
    with tempfile.TemporaryDirectory() as folder:
        if any(RUN in word for word in words):
            few = ["--trainer.max_steps", "1", "--trainer.wandb", "disabled"]
            call([words[0], *few, "--trainer.accelerator", "cpu", "--trainer.output_dir", folder])
        yield [word.replace(RUN, f"{folder}/run_1") for word in words], folder


@contextlib.contextmanager
def occupied(words: list[str]) -> Iterator[list[str]]:
    """Listen at the port that the command names for MASTER_PORT."""
    if not words or not words[0].startswith("MASTER_PORT="):
        yield words
        return
    os.environ["MASTER_PORT"] = port = words[0].partition("=")[2]
    with socket.socket() as listener:
        with contextlib.suppress(OSError):  # occupied already: just as well
            listener.bind(("127.0.0.1", int(port)))
            listener.listen()
        yield words[1:]
    del os.environ["MASTER_PORT"]


def main() -> None:
    """Print the error of each command; one that is not refused is an error of its own."""
    sys.path.insert(
        0, str(Path.cwd())
    )  # as for a script that lies here, which may import my_dataset.py
    os.environ["WANDB_MODE"] = "disabled"
    # The text shows the answers of a machine with two cores and no GPU, wherever it is made.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.cpu_count = lambda: 2
    importlib.import_module("torch").backends.mps.is_available = functools.cache(lambda: False)
    user_error = importlib.import_module("src.errors").UserError
    for given in json.loads(sys.argv[1]):
        with occupied(given) as words, begun_run(words) as (command, folder):
            try:
                call(command)
            except user_error as error:
                line = str(error).replace(f"{folder}/run_1", RUN)
                line = line.replace(f"[Errno {errno.EADDRINUSE}]", "[Errno 98]")  # Linux's number
                print(line.replace(f"{Path.cwd()}/", ""))  # the text is read on other machines
            else:
                raise SystemExit(f"not refused: {given}")


if __name__ == "__main__":
    main()
