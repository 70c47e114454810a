"""What the generated blocks of the READMEs call.

A README holds blocks such as::

    <!-- [[[cog output("default") ]]] -->
    (generated text)
    <!-- [[[end]]] -->

cog (https://cog.readthedocs.io) runs the call and replaces the text. ``cog --check``, and with it
the test suite, fails if a block is not what its call gives::

  uv run cog -r -I appendix -p "from blocks import *" README.md 0_setup/README.md
"""

import json
import subprocess
import sys
from pathlib import Path

import cog

ROOT = Path(__file__).resolve().parents[1]

# Runs several bad commands in one process, since importing torch takes seconds.
REFUSALS = """
import json, sys
sys.path.insert(0, "")  # as for a script that lies here, which may import my_dataset.py
import pytorch_train
for words in json.loads(sys.argv[1]):
    sys.argv = ["pytorch_train.py", *words]
    try:
        pytorch_train.main()
    except pytorch_train.UserError as error:
        print(error)
    else:
        raise SystemExit(f"not refused: {words}")
"""


def chapter() -> Path:
    """The folder of the README that is being generated."""
    return (Path.cwd() / cog.inFile).resolve().parent


def record(name: str, folder: str | None = None) -> dict:
    """A measurement that appendix/measure.py wrote."""
    results = (ROOT / folder if folder else chapter()) / "results"
    return json.loads((results / f"{name}.json").read_text())


def fenced(text: str, language: str = "") -> None:
    """Write a fenced block."""
    cog.outl(f"```{language}\n{text.rstrip()}\n```")


def output(name: str) -> None:
    """The command of a record and what it printed."""
    made = record(name)
    fenced(f"$ uv run {made['command']}\n{made['stdout']}", "console")


def provenance(name: str, folder: str | None = None) -> None:
    """One line: time, memory, hardware and versions of a record."""
    made = record(name, folder)
    hardware, versions = made["hardware"], made["versions"]
    cog.outl(
        f"*Measured with `{made['command']}`: {made['seconds']:.0f} s in all, "
        f"{made['seconds_to_first_row']:.0f} s until the tenth step, "
        f"{made['peak_memory_mb'] / 1000:.2f} GB of memory at most; {hardware['processor']}, "
        f"{hardware['cores']} cores, {hardware['memory']}, {hardware['system']}, "
        f"Python {versions['Python']}, PyTorch {versions['torch']}.*"
    )


def caption(name: str, folder: str) -> None:
    """What the picture of the landing page shows, with the time it took."""
    made = record(name, folder)
    cog.outl(
        f"*Chapter 0's model after {made['seconds']:.0f} seconds on "
        f"{made['hardware']['cores']} CPU cores: it saw the "
        "second map and made the third (visible patches pasted in).*"
    )


def scores(variable: str, unit: str, names: dict[str, str], folder: str | None = None) -> None:
    """A table of validation errors: a row for each method, a column for each record."""
    made = {title: record(name, folder)["summary"]["validation"] for name, title in names.items()}
    cog.outl(f"| RMSE of {variable} ({unit}) | {' | '.join(made)} |")
    cog.outl(f"|---|{'---|' * len(made)}")
    for method in next(iter(made.values())):
        values = [f"{found[method][f'rmse_{variable}']:.2f}" for found in made.values()]
        values = [f"**{value}**" if "autoencoder" in method else value for value in values]
        cog.outl(f"| {method} | {' | '.join(values)} |")


def include(path: str, language: str) -> None:
    """A file of the chapter, whole."""
    fenced((chapter() / path).read_text(), language)


def refusals(commands: dict[str, str]) -> None:
    """A table: what was wrong, and the line that the train script answers it with, run now."""
    words = json.dumps([command.split() for command in commands.values()])
    done = subprocess.run(
        [sys.executable, "-c", REFUSALS, words],
        cwd=chapter(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    cog.outl("| what is wrong | what you see |\n|---|---|")
    for wrong, line in zip(commands, done.stdout.splitlines(), strict=True):
        # Long lists of allowed keys are cut: the table shows the form of the message.
        line = line if len(line) < 150 else line[:145].rpartition(" ")[0] + " ..."
        cog.outl(f"| {wrong} | `error: {line}` |")
