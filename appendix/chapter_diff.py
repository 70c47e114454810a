"""Show what a chapter changes, file by file in reading order, with the files as they are on disk.

uv run python appendix/chapter_diff.py 1_multi_gpu           against the chapter before
uv run python appendix/chapter_diff.py 0_setup 1_multi_gpu   any two chapters
uv run python appendix/chapter_diff.py 1_multi_gpu --stat    only names and numbers of lines
uv run python appendix/chapter_diff.py 1_multi_gpu --html    side by side, in appendix/output/
"""

import argparse
import difflib
import html
import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import chapters
from carry import write
from chapters import ROOT, Difference, counted
from git_files import Content, UserError, git, git_diff, read

KINDS = {"adds": "new", "changes": "changed", "leaves": "left behind"}
HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", flags=re.MULTILINE)
CONTEXT = 3  # unchanged lines that stay visible beside a change
STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1f2328; --dim: #59636e; --line: #d1d9e0;
  --old: #ffebe9; --new: #dafbe1; --cut: #ffc1bc; --put: #9be9a8; --link: #0550ae; }
@media (prefers-color-scheme: dark) { :root { --page: #0d1117; --text: #e6edf3; --dim: #9198a1;
  --line: #3d444d; --old: #3c1618; --new: #12361d; --cut: #8e2a2a; --put: #1f6f35; --link: #7bf; } }
* { box-sizing: border-box; } .row.one { grid-template-columns: 4em minmax(0, 1fr); }
body { margin: 0; background: var(--page); color: var(--text); font: 16px/1.5 sans-serif; }
code, h2, .row { font-family: ui-monospace, Menlo, monospace; } h1 { font-size: 1.3rem; }
h2 { font-size: 1rem; margin: 2rem 0 0; } small, .row b { color: var(--dim); font-weight: 400; }
nav, main { padding: 1rem; } nav li { margin-bottom: .5rem; } section p { margin: .2rem 0 .5rem; }
nav a, h2 { overflow-wrap: anywhere; } .file { border: 1px solid var(--line); font-size: .8rem; }
.row { display: grid; grid-template-columns: repeat(2, 4em minmax(0, 1fr)); line-height: 1.45; }
.row > * { white-space: pre-wrap; overflow-wrap: anywhere; } mark { color: inherit; }
.row b { text-align: right; padding-right: .6em; user-select: none; } a { color: var(--link); }
ins, del { text-decoration: none; } del { background: var(--old); } ins { background: var(--new); }
del::before { content: "−"; } ins::before { content: "+"; } .row span::before { content: " "; }
del mark { background: var(--cut); } ins mark { background: var(--put); }
summary { padding: .3rem; color: var(--link); } :focus-visible { outline: 2px solid var(--link); }
@media (min-width: 70rem) { body { display: grid; grid-template-columns: 20rem minmax(0, 1fr); }
  nav { position: sticky; top: 0; height: 100vh; overflow: auto; } }
@media (max-width: 45rem) { .row { grid-template-columns: 3em minmax(0, 1fr); }
  .row .void, .row.same > :nth-child(-n+2) { display: none; } }
"""


def lines(content: Content | None) -> list[str]:
    """The lines of a text as git counts them."""
    text = content.data.decode(errors="replace") if content else ""
    return text.removesuffix("\n").split("\n") if text else []


def hunks(root: Path, old: str, new: str, file: str) -> list[tuple[int, int, int, int]]:
    """Where git sees changes: start and end in the old lines, start and end in the new ones."""
    found = []
    text = git_diff(root, old, new, file, "-U0", "--no-color").decode(errors="replace")
    for match in HUNK.finditer(text):
        a, n, b, m = (int(group) if group else 1 for group in match.groups())
        # Of an empty side git names the line before.
        a, b = a - (n > 0), b - (m > 0)
        found.append((a, a + n, b, b + m))
    return found


def cell(tag: str, number: int | None, text: str) -> str:
    """A line number and a line that is already escaped; without a number, the space of one."""
    if number is None:
        return '<b class="void"></b><span class="void"></span>'
    return f"<b>{number}</b><{tag}>{text}</{tag}>"


def marked(old: str, new: str) -> tuple[str, str]:
    """Two versions of a line, with marks around the words that differ."""
    left, right = (re.findall(r"\w+|\s+|.", line) for line in (old, new))
    sides = ["", ""]
    for tag, a, b, c, d in difflib.SequenceMatcher(None, left, right, False).get_opcodes():
        for n, words in enumerate((left[a:b], right[c:d])):
            text = html.escape("".join(words))
            sides[n] += text if tag == "equal" or not text else f"<mark>{text}</mark>"
    return sides[0], sides[1]


def paired(old: list[str], new: list[str]) -> Iterator[tuple[int | None, int | None, bool]]:
    """Which lines of a change to show side by side, and whether they are alike."""
    best, i, j = 0.6, -1, -1  # what is less alike is not the same line, edited
    limit = len(new) if len(old) * len(new) < 1000 else 0  # all with all: not for data files
    for m, n in itertools.product(range(len(old)), range(limit)):
        matcher = difflib.SequenceMatcher(None, old[m].strip(), new[n].strip(), False)
        if old[m].strip() and matcher.quick_ratio() > best and matcher.ratio() > best:
            best, i, j = matcher.ratio(), m, n
    if i < 0:
        for row in itertools.zip_longest(range(len(old)), range(len(new))):
            yield *row, False
        return
    yield from paired(old[:i], new[:j])
    yield i, j, True
    for p, q, alike in paired(old[i + 1 :], new[j + 1 :]):
        yield None if p is None else p + i + 1, None if q is None else q + j + 1, alike


def changed_rows(old: list[str], new: list[str], a: int, b: int) -> Iterator[str]:
    """The rows of one change; ``a`` and ``b`` are the lines above it."""
    for m, n, alike in paired(old, new):
        left, right = ("" if k is None else side[k] for side, k in ((old, m), (new, n)))
        texts = marked(left, right) if alike else (html.escape(left), html.escape(right))
        cells = cell("del", None if m is None else a + m + 1, texts[0])
        cells += cell("ins", None if n is None else b + n + 1, texts[1])
        yield f'<div class="row">{cells}</div>'


def same_rows(text: list[str], a: int, b: int, head: int, tail: int) -> Iterator[str]:
    """Unchanged lines: the middle of a long run is folded."""
    numbered = enumerate(map(html.escape, text), start=1)
    cells = [cell("span", a + n, line) + cell("span", b + n, line) for n, line in numbered]
    rows = [f'<div class="row same">{pair}</div>' for pair in cells]
    folded = rows[head : len(rows) - tail]
    if len(folded) > 1:
        summary = f"<details><summary>{len(folded)} unchanged lines</summary>"
        rows = [*rows[:head], summary, *folded, "</details>", *rows[len(rows) - tail :]]
    yield from rows


def side_by_side(root: Path, old: str, new: str, file: str) -> Iterator[str]:
    """A changed text: what is above each change, then the change."""
    left, right = (lines(read(root / chapter / file)) for chapter in (old, new))
    a, b, end = 0, 0, (len(left), len(left), len(right), len(right))
    for start, stop, first, last in [*hunks(root, old, new, file), end]:
        tail = CONTEXT if start < len(left) or first < len(right) else 0
        yield from same_rows(left[a:start], a, b, CONTEXT if a or b else 0, tail)
        yield from changed_rows(left[start:stop], right[first:last], start, first)
        a, b = stop, last


def inline(text: str) -> str:
    """The text of the list as HTML: backticks are its only markup."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))


def label(one: Difference) -> str:
    """What became of the file, such as ``changed, +3 −1``."""
    return f"{KINDS[one.kind]}, {counted([one])}"


def section(root: Path, old: str, new: str, one: Difference, number: int) -> str:
    """A file's heading and its lines."""
    sides = [read(root / chapter / one.path) for chapter in (old, new)]
    modes = [side.mode for side in sides if side]
    if one.kind == "changes":
        rows = side_by_side(root, old, new, one.path)
    else:
        tag, content = ("del", sides[0]) if sides[0] else ("ins", sides[1])
        cells = (cell(tag, n, html.escape(line)) for n, line in enumerate(lines(content), start=1))
        rows = (f'<div class="row one">{pair}</div>' for pair in cells)
    body = "\n".join(rows) if one.lines else ""  # nothing of a binary file
    if one.kind == "leaves":
        body = f"<details><summary>the lines that stay in {old}</summary>{body}</details>"
    mode = f" Mode {modes[0]} → {modes[-1]}." if modes[0] != modes[-1] else ""
    return (
        f'<section id="f{number}"><h2>{html.escape(one.path)} <small>{label(one)}</small></h2>'
        f"<p>{inline(one.phrase)}{mode}</p>\n"
        f'<div class="file">{body}</div></section>'
    )


def page(root: Path, old: str, new: str) -> str:
    """The whole page."""
    found, summary = chapters.differences(root, old, new), chapters.totals(root, old, new)
    contents = "".join(
        f'<li><a href="#f{number}">{html.escape(one.path)}</a> <small>{label(one)}</small><br>'
        f"{inline(one.phrase)}</li>\n"
        for number, one in enumerate(found)
    )
    sections = "\n".join(section(root, old, new, one, n) for n, one in enumerate(found))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{old} → {new}</title><style>{STYLE}</style></head>\n<body>\n"
        f'<nav aria-label="files"><h1>{old} → {new}</h1><p>{inline(summary)}</p>\n'
        f"<ol>\n{contents}</ol></nav>\n<main>\n{sections}\n</main></body></html>\n"
    )


def report(root: Path, old: str, new: str, stat: bool, colour: str) -> bytes:
    """The text for a terminal."""
    found, text = chapters.differences(root, old, new), b""
    for one in found:
        if stat:
            text += f"{one.path:45}  {counted([one]):>9}  {one.phrase}\n".encode()
            continue
        bold, plain = ("\033[1m", "\033[0m") if colour == "always" else ("", "")
        text += f"{bold}== {one.path}{plain} ({label(one)})\n   {one.phrase}\n\n".encode()
        if one.kind != "leaves":
            text += git_diff(root, old, new, one.path, f"--color={colour}") + b"\n"
    return text + f"{chapters.totals(root, old, new)}\n".encode()


def show(root: Path, text: bytes) -> None:
    """Print, on a terminal through the pager that git uses."""
    if not sys.stdout.isatty():
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()
        return
    pager = git(root, "var", "GIT_PAGER").decode().strip() or "cat"
    settings = {"LESS": "FRX", **os.environ}  # as git starts it
    process = subprocess.Popen(pager, shell=True, stdin=subprocess.PIPE, env=settings)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the pager
    process.communicate(text)


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Show the difference, or write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("chapters", nargs="+", help="one chapter, or two", metavar="CHAPTER")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--stat", action="store_true", help="only names and numbers of lines")
    form.add_argument("--html", nargs="?", const="", metavar="FILE", help="write a page")
    given = parser.parse_args(arguments)
    try:
        known, names = chapters.chapters(root), [name.rstrip("/") for name in given.chapters]
        names = [chapters.before(root, names[0]), *names] if len(names) == 1 else names
        if len(names) != 2 or names[0] == names[1] or not set(names) <= set(known):
            parser.error(f"give one chapter, or two different ones, of {', '.join(known)}")
        if given.html is not None:
            path = Path(given.html or root / "appendix" / "output" / f"{names[1]}.html")
            write(path, Content(page(root, names[0], names[1]).encode()))
            print(f"wrote {os.path.relpath(path)}")
        else:
            colour = "always" if sys.stdout.isatty() else "never"
            show(root, report(root, names[0], names[1], given.stat, colour))
    except BrokenPipeError:
        # The reader has seen enough; what Python still holds must not be written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    except (UserError, OSError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
