"""Code in a README, cut out of the chapter's files, so that it cannot go stale.

  uv run python appendix/excerpts.py 0_setup   put the code of today between all markers

A marker names a file, and parts of the first and the last line of the excerpt; one line alone needs
one. What stands between the marker and the end is replaced:

  <!-- code src/run/optim.py: matrices = ... weight_decay=weight_decay -->
  <!-- end -->
"""

import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MARKER = re.compile(r"<!-- code (\S+): (.+?) -->\n.*?<!-- end -->", re.DOTALL)


def current(readme: Path) -> str:
    """The text of a README with the code of today. Raises LookupError where a line is gone."""

    def replacement(marker: re.Match) -> str:
        path, places = marker.groups()
        lines = (readme.parent / path).read_text().splitlines()
        start = first_with(places.partition(" ... ")[0], lines, 0)
        end = first_with(places.partition(" ... ")[2], lines, start)
        code = textwrap.dedent("\n".join(lines[start : end + 1]))
        language = path.rpartition(".")[2].replace("py", "python")
        code = f"```{language}\n{code}\n```"
        return f"<!-- code {path}: {places} -->\n{code}\n<!-- end -->"

    return MARKER.sub(replacement, readme.read_text())


def first_with(text: str, lines: list[str], start: int) -> int:
    """The number of the first line, from ``start`` on, that contains the text."""
    for number in range(start, len(lines)):
        if text in lines[number]:
            return number
    raise LookupError(f"no line with {text!r}")


if __name__ == "__main__":
    for chapter in sys.argv[1:]:
        path = ROOT / chapter / "README.md"
        path.write_text(current(path))
