"""The READMEs as a website, with each chapter's diff to the one before."""

import itertools
import subprocess
from difflib import HtmlDiff
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
html_static_path = ["static"]
html_css_files = ["diff.css"]


def git(*words: str) -> str:
    """What git prints."""
    return subprocess.check_output(["git", *words], cwd=ROOT, text=True)


def what_is_new(before: str, chapter: str) -> str:
    """A page: the tree of the README, new files, and changed ones with old and new side by side."""
    readme = (ROOT / chapter / "README.md").read_text()
    tree = readme.split("```")[1]
    text = f"# {chapter}: what is new\n\nIn reading order.\n\n```{tree}```\n"
    options = [f"-O{HERE / 'reading_order.txt'}", "--diff-filter=AM", "--name-status"]
    trees = [f"HEAD:{before}", f"HEAD:{chapter}"]
    changes = git("diff", *options, *trees, "--", ".", *LEFT_OUT)
    for status, name in map(str.split, changes.splitlines()):
        new = git("show", f"HEAD:{chapter}/{name}")
        language = "python" if name.endswith(".py") else "text"
        shown = f"````{language}\n{new}\n````"
        if status == "M":
            old = git("show", f"HEAD:{before}/{name}").splitlines()
            sides = HtmlDiff(wrapcolumn=52).make_table(
                old, new.splitlines(), context=True
            )
            shown = f"````{{raw}} html\n<div class='sides'>{sides}</div>\n````"
        text += f"\n## {name}\n\n{shown}\n"
    return text


DIFFS.mkdir(parents=True, exist_ok=True)
chapters = sorted(path.parent.name for path in ROOT.glob("[0-9]_*/README.md"))
for before, chapter in itertools.pairwise(chapters):
    (DIFFS / f"{chapter}.md").write_text(what_is_new(before, chapter))


def add_navigation(_: Any, page: str, source: list[str]) -> None:
    """Give the first page a navigation, and the others a link, which GitHub does not need."""
    if page == root_doc:
        source[0] += (HERE / "navigation.txt").read_text()
    chapter = Path(page).parent.name
    if chapter in chapters[1:]:
        link = f"[What is new, file by file](../appendix/output/diffs/{chapter}.md)\n"
        source[0] = source[0].replace("## The files\n", f"## The files\n\n{link}", 1)


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_navigation)
