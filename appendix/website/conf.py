"""The READMEs as a website, with each chapter's diff to the one before."""

import itertools
import re
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DIFFS = HERE.parent / "output" / "diffs"
LEFT_OUT = [":!tests", ":!results", ":!*.md"]

project = html_title = "Training at larger scale"
root_doc = "README"
templates_path = ["."]
html_additional_pages = {"index": "index.html"}  # leads to README.html
include_patterns = [
    "*.md",
    "[0-9]*/README.md",
    "appendix/*.md",
    "appendix/guide/*.md",
    "appendix/output/diffs/*.md",
]
extensions = ["myst_parser", "sphinx_copybutton"]  # copies commands without "$ "
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
myst_heading_anchors = 3  # links to headings, as GitHub makes them
html_theme = "furo"  # search, dark mode, phones
pygments_style = "default"  # has colours for what a diff adds

DIFFS.mkdir(parents=True, exist_ok=True)
chapters = sorted(path.parent.name for path in ROOT.glob("[0-9]_*/README.md"))
for before, chapter in itertools.pairwise(chapters):
    command = ["git", "diff", "--diff-filter=AM", "-O", str(HERE / "reading_order.txt")]
    command += [f"HEAD:{before}", f"HEAD:{chapter}", "--", ".", *LEFT_OUT]
    changes = subprocess.check_output(command, cwd=ROOT, text=True)
    text = f"# {chapter}: what is new\n\nThe files are in reading order.\n"
    for file in changes.split("\ndiff --git a/"):
        name, hunks = re.split(r"\s", file.removeprefix("diff --git a/"), maxsplit=1)
        if "@@" in hunks:  # a picture has none
            text += f"\n## {name}\n\n````diff\n{hunks[hunks.index('@@') :].rstrip()}\n````\n"
    (DIFFS / f"{chapter}.md").write_text(text)


def add_navigation(_: Any, page: str, source: list[str]) -> None:
    """Give the first page a navigation, which GitHub does not need."""
    if page == root_doc:
        source[0] += (HERE / "navigation.txt").read_text()


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_navigation)
