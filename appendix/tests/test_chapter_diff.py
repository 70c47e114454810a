"""The difference for reading: complete, in order, and a page that holds nothing but itself."""

import html
import os
import pty
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import chapter_diff
import pytest
from chapters import LIST

TOOL = Path(chapter_diff.__file__)
OLD = (
    "<i> & first\n"
    + "".join(f"line {n}\n" for n in range(2, 41))
    + 'print("<script>alert(1)</script>")\n'
)
NEW = OLD.replace("line 5\n", "line 5 & more\n").replace("line 30\n", "").replace("alert", "b")
PLAN = """\
1_b:
  adds:
    new.py: "`new` & <shiny>"
  changes:
    z.py: read this first
    a.py: then this
  leaves:
    left.py: stays
"""


@pytest.fixture
def root(repository) -> Path:
    old = {"z.py": OLD, "a.py": "one\ntwo\n", "left.py": "gone\n", "same.py": "untouched\n"}
    new = {"z.py": NEW, "a.py": "two\n", "new.py": "fresh\n\n<b>lines\n", "same.py": "untouched\n"}
    for chapter, texts in (("0_a", old), ("1_b", new), ("2_c", new | {"a.py": "two\nthree\n"})):
        (repository / chapter).mkdir()
        for name, text in texts.items():
            (repository / chapter / name).write_text(text)
    (repository / "appendix").mkdir()
    (repository / LIST).write_text(PLAN)
    return repository


class Page(HTMLParser):
    """Checks that tags are balanced, and collects what the page shows."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.lines: dict[str, list[str]] = {"del": [], "ins": [], "mark": [], "span": []}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)
        if tag in self.lines and "class" not in dict(attrs):
            self.lines[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in self.lines.keys() & set(self.open):
            self.lines[tag][-1:] = ["".join([*self.lines[tag][-1:], data])]


@pytest.fixture
def page(root) -> Page:
    return Page(chapter_diff.page(root, "0_a", "1_b"))


def test_every_changed_line_is_there_once(page):
    assert page.lines["del"] == [
        "line 5",
        "line 30",
        'print("<script>alert(1)</script>")',
        "one",
        "gone",
    ]
    assert page.lines["ins"] == [
        "fresh",
        "",
        "<b>lines",
        "line 5 & more",
        'print("<script>b(1)</script>")',
    ]


def test_unchanged_lines_are_on_both_sides_and_long_runs_folded(page):
    both = [line for line in OLD.splitlines()[:-1] if line not in ("line 5", "line 30")]
    assert page.lines["span"] == [line for line in both for _ in "ab"] + ["two"] * 2
    assert len([tag for tag, _ in page.tags if tag == "details"]) == 3  # 18, 4 lines, left.py


def test_line_numbers_are_those_of_the_files(root):
    rows = "".join(chapter_diff.side_by_side(root, "0_a", "1_b", "z.py"))
    cells = re.findall(r"<b>(\d+)</b><(del|ins|span)>(.*?)</\2>", rows)
    shown = [(int(n), tag, html.unescape(re.sub("</?mark>", "", line))) for n, tag, line in cells]
    # Of the unchanged rows, which have two cells, the old side comes first.
    same = [(n, line) for n, tag, line in shown if tag == "span"]
    old = [(n, line) for n, tag, line in shown if tag == "del"] + same[::2]
    new = [(n, line) for n, tag, line in shown if tag == "ins"] + same[1::2]
    assert sorted(old) == list(enumerate(OLD.splitlines(), start=1))
    assert sorted(new) == list(enumerate(NEW.splitlines(), start=1))


def test_words_that_differ_are_marked(page):
    assert page.lines["mark"] == [" & more", "alert", "b"]


def test_pairs_the_lines_that_are_alike():
    old = ["a = 1", "total = first + second", "return total + 1"]
    new = ["total = first + seconds", "x", "return total + 2"]
    pairs = [(0, None, False), (1, 0, True), (None, 1, False), (2, 2, True)]
    assert list(chapter_diff.paired(old, new)) == pairs


def test_the_page_is_complete_in_itself(root, page):
    text = chapter_diff.page(root, "0_a", "1_b")
    assert "http" not in text
    assert "url(" not in text
    assert {"script", "link", "img", "iframe"}.isdisjoint(tag for tag, _ in page.tags)
    assert "prefers-color-scheme: dark" in text
    assert "`" not in text
    assert "<code>new</code> &amp; &lt;shiny&gt;" in text


def test_contents_lead_to_the_files_in_reading_order(root, page):
    targets = [attrs["href"] for tag, attrs in page.tags if tag == "a"]
    assert targets == [f"#{attrs['id']}" for tag, attrs in page.tags if tag == "section"]
    text = chapter_diff.page(root, "0_a", "1_b")
    titles = re.findall(r"<h2>(\S+) <small>(.*?)</small>", text)
    assert titles == [
        ("new.py", "new, +3"),
        ("z.py", "changed, +2 −3"),
        ("a.py", "changed, −1"),
        ("left.py", "left behind, −1"),
    ]


def test_a_binary_file_a_mode_and_a_link(root):
    (root / "0_a/data").write_bytes(b"\0\1")
    (root / "1_b/data").write_bytes(b"\0\2")
    (root / "1_b/same.py").chmod(0o755)
    (root / "0_a/link").symlink_to("a.py")
    (root / "1_b/link").symlink_to("new.py")
    text = chapter_diff.page(root, "0_a", "1_b")
    page = Page(text)
    assert "<h2>data <small>changed, binary</small></h2>" in text
    assert "<h2>same.py <small>changed, mode</small></h2><p> Mode 100644 → 100755.</p>" in text
    assert page.lines["ins"][-1] == "new.py"
    assert "\0" not in text


def test_the_page_goes_to_output_or_to_a_file(root, capsys, tmp_path):
    assert chapter_diff.main(["1_b/", "--html"], root) == 0
    made = root / "appendix/output/1_b.html"
    assert made.read_text(encoding="utf-8") == chapter_diff.page(root, "0_a", "1_b")
    assert "1_b.html" in capsys.readouterr().out
    assert chapter_diff.main(["0_a", "2_c", "--html", str(root / "x.html")], root) == 0
    assert "0_a → 2_c" in (root / "x.html").read_text(encoding="utf-8")
    assert sorted(path.name for path in made.parent.iterdir()) == ["1_b.html"]


def test_text_is_in_reading_order_and_without_colour(root, capfdbinary):
    assert chapter_diff.main(["1_b"], root) == 0
    text = capfdbinary.readouterr().out.decode()
    assert re.findall("^== .*$", text, flags=re.MULTILINE) == [
        "== new.py (new, +3)",
        "== z.py (changed, +2 −3)",
        "== a.py (changed, −1)",
        "== left.py (left behind, −1)",
    ]
    assert "read this first\n" in text
    assert "\n-line 5\n+line 5 & more\n" in text
    assert "+fresh\n" in text
    assert "\033" not in text
    assert "-gone" not in text


def test_stat_and_distant_chapters(root, capfdbinary):
    assert chapter_diff.main(["0_a", "2_c", "--stat"], root) == 0
    rows = capfdbinary.readouterr().out.decode().splitlines()
    assert [row.split()[:2] for row in rows[:3]] == [
        ["new.py", "+3"],
        ["z.py", "+2"],
        ["a.py", "+1"],
    ]
    assert rows[-1].startswith("Files against `0_a`: 1 byte-identical, 1 added, 2 changed")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["9_x"], "no chapter comes before 9_x: give one of 1_b, 2_c"),
        (["0_a"], "no chapter comes before 0_a"),
        (["0_a", "9_x"], "two different ones, of 0_a, 1_b, 2_c"),
        (["1_b", "1_b"], "two different ones"),
        (["0_a", "1_b", "2_c"], "two different ones"),
        (["1_b", "--html", "0_a/a.py/x.html"], "0_a/a.py"),
        (["1_b", "--html", "--stat"], "not allowed with"),
    ],
)
def test_a_mistake_is_one_line(root, capsys, monkeypatch, words, told):
    monkeypatch.chdir(root)
    with pytest.raises(SystemExit) as stopped:
        chapter_diff.main(words, root)
    assert stopped.value.code == 2
    assert told in capsys.readouterr().err.splitlines()[-1]


def program(root: Path) -> list[str]:
    code = "import sys, pathlib, chapter_diff as d; root = pathlib.Path(sys.argv[1])"
    return [sys.executable, "-c", f"{code}\nsys.exit(d.main(sys.argv[2:], root))", str(root), "1_b"]


def test_a_reader_that_stops_reading(root, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # it hides the error
    (root / "1_b/z.py").write_text("many lines\n" * 50_000)
    pipe = subprocess.PIPE
    tool = subprocess.Popen(program(root), cwd=TOOL.parent, stdout=pipe, stderr=pipe)
    assert tool.stdout is not None
    assert tool.stderr is not None
    assert tool.stdout.readline().startswith(b"== new.py")
    tool.stdout.close()
    assert tool.stderr.read() == b""
    tool.stderr.close()
    assert tool.wait(timeout=30) == 0


@pytest.mark.parametrize("pager", ["cat", "head -n 1", "true"])
def test_a_terminal_gets_colour_and_the_pager(root, pager):
    """Also a pager that is left before it has read all."""
    (root / "1_b/z.py").write_text("many lines\n" * 20_000)
    ours, theirs = pty.openpty()
    tool = subprocess.Popen(
        program(root),
        cwd=TOOL.parent,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "GIT_PAGER": f"{pager} | head -n 5"},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # how Linux ends a terminal that nobody writes to any more
            break
        shown += piece
        if not piece:
            break
    os.close(ours)
    assert tool.communicate(timeout=30)[1] == b""
    assert tool.returncode == 0
    assert shown.startswith(b"\033[1m== new.py") == (pager != "true")
    assert (b"\033[1mdiff --git" in shown) == (pager == "cat")
