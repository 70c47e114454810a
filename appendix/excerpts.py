"""Code in a README, cut out of the chapter's files, so that it cannot go stale.

  uv run python appendix/excerpts.py 0_setup   put the code of today between all markers

A marker names a file and the first and last line of the excerpt, or two files and a line of the
hunk in which they differ. What stands between it and the end is replaced:

  <!-- code src/run/optim.py: matrices = ... weight_decay=weight_decay -->
  <!-- diff pytorch_train.py pytorch_ddp_train.py: DistributedDataParallel( -->
  <!-- end -->
"""

import difflib
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MARKER = re.compile(r"<!-- (code|diff) (.+?): (.+?) -->\n.*?<!-- end -->", re.DOTALL)


def current(readme: Path) -> str:
    """The text of a README with the code of today. Raises LookupError where a line is gone."""

    def replacement(marker: re.Match) -> str:
        kind, paths, places = marker.groups()
        codes = [(readme.parent / path).read_text() for path in paths.split()]
        if kind == "code":
            language = "python"
            excerpt = lines_between(*codes, *places.split(" ... "))
        else:
            language = "diff"
            excerpt = hunk_with(codes[0], codes[1], places)
        block = f"```{language}\n{excerpt}\n```"
        return f"<!-- {kind} {paths}: {places} -->\n{block}\n<!-- end -->"

    return MARKER.sub(replacement, readme.read_text())


def first_with(text: str, parts: list[str], start: int = 0) -> int:
    """The number of the first part, from ``start`` on, that contains the text."""
    for number in range(start, len(parts)):
        if text in parts[number]:
            return number
    raise LookupError(f"no line with {text!r}")


def lines_between(code: str, first: str, last: str = "") -> str:
    """From the line with ``first`` to the next one with ``last``, or the first one alone."""
    lines = code.splitlines()
    start = first_with(first, lines)
    end = first_with(last, lines, start)
    return textwrap.dedent("\n".join(lines[start : end + 1]))


def hunk_with(old: str, new: str, text: str) -> str:
    """The place where two texts differ that has a line with ``text``."""
    both = (old.splitlines(), new.splitlines())
    difference = difflib.unified_diff(*both, n=1, lineterm="")
    hunks = re.split(r"^@@.*\n", "\n".join(difference), flags=re.MULTILINE)
    lines = hunks[first_with(text, hunks, 1)].strip("\n").split("\n")
    dedented = textwrap.dedent("\n".join(line[1:] for line in lines)).split("\n")
    pairs = zip(lines, dedented, strict=True)
    return "\n".join(f"{line[:1]}{rest}".rstrip() for line, rest in pairs)


if __name__ == "__main__":
    for chapter in sys.argv[1:]:
        path = ROOT / chapter / "README.md"
        path.write_text(current(path))
