"""What the generated blocks of the READMEs call.

A README holds blocks such as::

    <!-- [[[cog output("default") ]]] -->
    (generated text)
    <!-- [[[end]]] -->

cog (https://cog.readthedocs.io) runs the call and replaces the text. ``cog --check``, and with it
the test suite, fails if a block is not what its call gives::

  uv run cog -r -I appendix -p "from blocks import *" README.md 0_setup/README.md
"""

import ast
import json
import re
import tokenize
from pathlib import Path

import chapters
import cog
from forks import forks
from walk import table

ROOT = Path(__file__).resolve().parents[1]


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


def output(name: str, folder: str | None = None) -> None:
    """The command of a record and what it printed."""
    made = record(name, folder)
    command = made["command"]
    # One that runs in another environment says so itself.
    shown = command if command.startswith("uv ") else f"uv run {command}"
    fenced(f"$ {shown}\n{made['stdout']}", "console")


def provenance(name: str, folder: str | None = None) -> None:
    """One line: time, memory, hardware and versions of a record."""
    made = record(name, folder)
    hardware, versions, first = made["hardware"], made["versions"], made["seconds_to_first_row"]
    cog.outl(
        f"*Measured with `{made['command']}`: {made['seconds']:.0f} s in all, "
        + (f"{first:.0f} s until the tenth step, " if first else "")
        + f"{made['peak_memory_mb'] / 1000:.2f} GB of memory at most in one process; "
        f"{hardware['processor']}, {hardware['cores']} cores, {hardware['memory']}, "
        f"{hardware['system']}, Python {versions['Python']}, PyTorch {versions['torch']}.*"
    )


def taken(name: str, folder: str | None = None) -> None:
    """One line below a picture of a screen: of what it was taken, on which machine."""
    made = record(name, folder)
    hardware = made["hardware"]
    cog.outl(
        f"*Screenshot of `{made['command']}`; {hardware['processor']}, {hardware['cores']} cores, "
        f"{hardware['memory']}.*"
    )


def walked() -> None:
    """What appendix/walk.py has run of each README, and what it has not."""
    cog.outl("\n".join(table()))


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


def what_changed() -> None:
    """A table of the chapter's differences from the one before, from the files as they are."""
    cog.outl(chapters.what_changed(ROOT, chapter().name))


def chapter_table(rows: dict[str, tuple[str, str, str]]) -> None:
    """The chapters: what one learns, the default run and its time, what it needs, what is new.

    A row is a chapter's folder, with what you learn, the record of its run, and what it needs.
    """
    cog.outl("| chapter | you learn | command | time | needs | lines against the one before |")
    cog.outl("|---|---|---|---|---|---|")
    earlier = ""
    for folder, (learn, name, needs) in rows.items():
        made = record(name, folder)
        command = f"`uv run {made['command'].replace('python ', f'python {folder}/')}`"
        found = chapters.differences(ROOT, earlier, folder) if earlier else []
        # What a chapter teaches is in its own lines, and not in a list of its packages.
        found = [one for one in found if not one.path.startswith("requirements")]
        ours = [one for one in found if one.kind != "leaves"]
        tests = [one for one in ours if one.path.startswith("tests/")]
        rest = [one for one in ours if one not in tests]
        lines = f"{chapters.counted(rest)}, tests {chapters.counted(tests)}" if found else ""
        link = f"[{folder}]({folder}/README.md)"
        cog.outl(f"| {link} | {learn} | {command} | {made['seconds']:.0f} s | {needs} | {lines} |")
        earlier = folder


def code_lines(path: Path) -> int:
    """Lines that hold code: no blank lines, comments or docstrings."""
    with tokenize.open(path) as file:
        text = file.read()
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        number
        for node in ast.walk(ast.parse(text))
        if isinstance(node, documented) and ast.get_docstring(node) is not None
        for number in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    kept = [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.strip().startswith("#") and number not in docstrings
    ]
    return len(kept)


def line_counts(rows: dict[str, str]) -> None:
    """A table: a file, its lines, those that hold code, and a phrase."""
    cog.outl("| file | lines | of them code | what it is |\n|---|---|---|---|")
    for name, phrase in rows.items():
        path = chapter() / name
        lines = len(path.read_text().splitlines())
        cog.outl(f"| [`{name}`]({name}) | {lines} | {code_lines(path)} | {phrase} |")


def line_link(place: str) -> str:
    """A link to the one line of a file that holds a phrase, from ``file: phrase``."""
    name, _, phrase = place.partition(": ")
    lines = (chapter() / name).read_text().splitlines()
    found = [number for number, line in enumerate(lines, 1) if phrase in line]
    if len(found) != 1:
        raise RuntimeError(f"{name} has {len(found)} lines with {phrase!r}, and not one")
    test = re.match(r"def (test_\w+)", phrase)
    label = f"`{test[1]}`" if test else f"{Path(name).name}:{found[0]}"
    return f"[{label}]({name}#L{found[0]})"


def features(rows: list[tuple[str, ...]], *more: str) -> None:
    """A table of features; ``{file: phrase}`` in a cell becomes a link to that line."""
    titles = ["feature", "raw PyTorch", "Lightning", *more]
    cog.outl(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for row in rows:
        cells = []
        for cell in row:
            while "{" in cell:
                place = cell[cell.index("{") + 1 : cell.index("}")]
                cell = cell.replace("{" + place + "}", line_link(place))
            cells.append(cell)
        cog.outl(f"| {' | '.join(cells)} |")


def excerpt(name: str, folder: str, first: str, last: str = "") -> None:
    """Part of what a record's command printed: from the line with ``first`` until ``last``."""
    lines = record(name, folder)["stdout"].splitlines()
    (start,) = [number for number, line in enumerate(lines) if first in line][:1]
    ends = [number for number in range(start + 1, len(lines)) if last and last in lines[number]]
    cut = [line.rstrip() for line in lines[start : ends[0] if ends else None]]
    fenced("\n".join(cut), "text")


def exercises() -> None:
    """What the chapter's unanswered exercises say, run now."""
    code, printed = forks().run(chapter(), ["exercises/check.py"])
    if code != 1:  # 1: some are not right yet
        raise RuntimeError(printed)
    fenced(f"$ uv run python exercises/check.py\n{printed}", "console")


def refusals(commands: dict[str, str]) -> None:
    """A table: what was wrong, and the line that the train script answers it with, run now.

    A command is the arguments of pytorch_train.py, or begins with the name of another script.
    """
    words = json.dumps([command.split() for command in commands.values()])
    code, printed = forks().run(chapter(), [str(ROOT / "appendix" / "refuse.py"), words])
    if code:
        raise RuntimeError(printed)
    cog.outl("| what is wrong | what you see |\n|---|---|")
    for wrong, line in zip(commands, printed.splitlines(), strict=True):
        # Long lists of allowed keys are cut: the table shows the form of the message.
        line = line if len(line) < 150 else line[:145].rpartition(" ")[0] + " ..."
        cog.outl(f"| {wrong} | `error: {line}` |")


def factors(records: dict[str, str], reference: str, rows: list[str]) -> None:
    """How many times as many samples per second as a benchmark's reference row, by record."""
    speeds = {title: samples_per_second(record(name)["stdout"]) for title, name in records.items()}
    cog.outl(f"| times as fast as *{reference}* | {' | '.join(records)} |")
    cog.outl("|---|" + "---|" * len(records))
    for row in rows:
        cells = (f"{found[row] / found[reference]:.0f}" for found in speeds.values())
        cog.outl(f"| {row} | {' | '.join(cells)} |")


def samples_per_second(printed: str) -> dict[str, float]:
    """The medians in the table of benchmark_datapipeline_configurations.py, by its rows' names."""
    header, *lines = printed.splitlines()
    titles = re.split(r"\s{2,}", header.strip())
    found = {}
    for line in lines:
        name, *values = re.split(r"\s{2,}", line.strip())
        if len(values) == len(titles):
            found[name] = float(values[titles.index("samples/s")].split()[0])
    return found
