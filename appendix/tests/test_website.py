"""The website's texts without the generator, and the site of a small repository."""

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import website_check
import website_text
from chapters import ROOT
from git_files import UserError

import website

PACKAGES = ("sphinx", "myst_parser", "pydata_sphinx_theme")
needs_sphinx = pytest.mark.skipif(
    not all(map(find_spec, PACKAGES)), reason="needs: uv run --group website"
)
DOCUMENTS = [
    "README.md",
    "0_a/README.md",
    "1_b/README.md",
    "1_b/peers/README.md",
    "CONTRIBUTING.md",
]


# ---- texts


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("README.md", "[a](0_a/README.md)", "[a](0_a/index.md)"),
        ("1_b/README.md", "[a](../0_a/README.md#run-it)", "[a](../0_a/index.md#run-it)"),
        ("1_b/README.md", "[b](README.md#x)", "[b](index.md#x)"),
        ("1_b/README.md", "[p](peers/README.md)", "[p](peers/index.md)"),
        ("README.md", "[c](CONTRIBUTING.md#x)", "[c](contributing.md#x)"),
        ("1_b/README.md", "[`x`](src/x.py#L3)", '<a href="src/x.py.html#L3">`x`</a>'),
        ("1_b/README.md", "[x](../0_a/y.py), z", '<a href="../0_a/y.py.html">x</a>, z'),
        ("1_b/README.md", "[e](.env.example)", '<a href="dot.env.example.html">e</a>'),
        ("1_b/README.md", "[f](exercises/)", '<a href="exercises.html">f</a>'),
        ("1_b/README.md", "![p](results/p.png)", "![p](results/p.png)"),
        ("README.md", "[w](https://a.example/b.md) [s](#s)", None),
        ("README.md", "`[a](0_a/README.md)` and ``[a](b) ` ``", None),
        ("README.md", "1. x\n\n   ```bash\n   [a](b)\n   ```\n", None),
        ("README.md", "```text\n[a](b)\n``\n[c](d)\n```\n", None),
    ],
)
def test_links_are_rewritten(path, text, expected):
    expected = text if expected is None else expected
    assert website_text.rewrite(path, text, DOCUMENTS) == expected


def test_markers_are_stripped():
    text = (
        '<!-- [[[cog output("x") ]]] -->\nkept\n<!-- [[[end]]] -->\n'
        "<!-- [[[cog\nf([\n    1,\n])\n]]] -->\n| a |\n<!-- [[[end]]] -->\n<!-- a remark -->\n"
    )
    assert website_text.strip_markers(text) == "kept\n| a |\n<!-- a remark -->\n"


def test_a_page_of_source_has_an_anchor_for_each_line():
    page = website_text.source_page("a.py", 'x = """<b>\n\n"""\n')
    assert re.findall(r'<span id="(L\d)">', page) == ["L1", "L2", "L3"]
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert '<span id="L1">' in website_text.source_page("no-such-kind.xyz", "text\n")


def test_what_is_wrong_with_pages_is_found(tmp_path):
    good = '<html lang="en"><h1 id="top">A</h1><a href="b/c.html#x">b</a><img src="p" alt="p">'
    bad = (
        '<h1>B</h1><h1 id="x">C</h1><i id="x"></i><a href="../a.html#none">a</a><a href="no">n</a>'
        '<script src="https://a.example/s.js"></script><img src="../p">'
    )
    (tmp_path / "b").mkdir()
    for name, text in {"a.html": good, "b/c.html": bad, "p": ""}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "s.css").write_text("@import 'https://a.example/font'; a { b: url(c.png) }")
    assert website_check.problems(tmp_path, website_check.pages(tmp_path)) == [
        "b/c.html: 2 headings of the first level",
        "b/c.html: leads nowhere: no",
        "b/c.html: loads from another host: https://a.example/s.js",
        "b/c.html: no language",
        "b/c.html: no such anchor: ../a.html#none",
        "b/c.html: picture without a text: ../p",
        "b/c.html: two elements named x",
        "s.css: loads from another host: https://a.example/font",
    ]


# ---- a small repository

LISTED = """
1_b:
  adds:
    peers/: others
  changes:
    x.py: adds
  leaves:
    tests/: gone
"""


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    texts = {
        "README.md": "# Book\n\n[first](0_a/README.md#more) ![map](0_a/results/map.png)\n",
        "0_a/README.md": "# First\n\nzebra\n\n## More\n\n[x](x.py#L2), [all](tests/)\n",
        "0_a/x.py": "1\nvalue = 2\n",
        "0_a/tests/test_x.py": "assert 3\n",
        "1_b/README.md": "# Second\n\n[back](../0_a/README.md)\n",
        "1_b/x.py": "1\nvalue = 3\n",
        "1_b/peers/README.md": "# Others\n\n[back](../README.md)\n",
        "CONTRIBUTING.md": "# Contributing\n",
        "appendix/chapters.yaml": LISTED,
    }
    root = tmp_path / "repository"
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "0_a/results").mkdir()
    shutil.copy(next(ROOT.glob("0_setup/results/*.png")), root / "0_a/results/map.png")
    shutil.copytree(ROOT / "website", root / "website")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def test_gathers_texts_pictures_files_and_differences(root, tmp_path):
    website.gather(root, tmp_path / "source")
    found = {path.relative_to(tmp_path / "source") for path in (tmp_path / "source").rglob("*.*")}
    expected = "index.md 0_a/index.md 0_a/results/map.png 1_b/index.md 1_b/changes.md site.json"
    expected += " 1_b/peers/index.md contributing.md"
    assert found == set(map(Path, expected.split()))
    assert "0_a/index\n1_b/index\ncontributing\n" in (tmp_path / "source/index.md").read_text()
    assert "changes\npeers/index\n" in (tmp_path / "source/1_b/index.md").read_text()
    assert "[What this chapter" not in (tmp_path / "source/0_a/index.md").read_text()
    assert "(changes.md)" in (tmp_path / "source/1_b/index.md").read_text()
    change = (tmp_path / "source/1_b/changes.md").read_text()
    assert "value = <mark>3</mark>" in change
    pages = (tmp_path / "source/site.json").read_text()
    assert all(f'"{name}"' in pages for name in ("0_a/x.py", "0_a/tests", "0_a/tests/test_x.py"))


@pytest.mark.parametrize(
    ("target", "message"),
    [("gone.py", "there is no 1_b/gone.py"), ("../0_a/results/map.png", "map.png is no text")],
)
def test_a_file_without_a_page(root, capsys, target, message):
    (root / "1_b/README.md").write_text(f"# Second\n\n[file]({target})\n")
    with pytest.raises(SystemExit, match="2"):
        website.main([], root)
    assert f"error: 1_b/README.md: {message}" in capsys.readouterr().err.replace("0_a/results/", "")


def test_a_folder_links_to_its_texts(root):
    (root / "0_a/tests/data.bin").write_bytes(b"\0")
    assert website.linked(root, website.documents(root))[1] >= {"0_a/tests", "0_a/tests/test_x.py"}
    _, page = website.file_page(root, "0_a/tests", {"0_a/tests/test_x.py"})
    assert '<a href="tests/test_x.py.html"><code>test_x.py</code></a>' in page
    assert "<li><code>data.bin</code></li>" in page


def test_without_the_generator(root, capsys, monkeypatch):
    monkeypatch.setattr(website, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="2"):
        website.main([], root)
    assert "uv run --group website" in capsys.readouterr().err


def test_removes_nothing_but_a_site(root, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").touch()
    with pytest.raises(UserError, match="no website"):
        website.replace(tmp_path / "new", tmp_path / "mine")
    assert (tmp_path / "mine/thesis.txt").exists()


@needs_sphinx
@pytest.mark.slow
def test_a_small_site_and_a_second_one_in_its_place(root, tmp_path, capsys):
    place = tmp_path / "site"
    assert website.main(["--output", str(place)], root) == 0
    assert "wrote 10 pages" in capsys.readouterr().out
    assert website.main(["--output", str(place), "--repository", "https://a.example/b"], root) == 0
    assert 'href="https://a.example/b"' in (place / "index.html").read_text()
    # What is wrong is told, and the site stays.
    before = {path: path.read_bytes() for path in place.rglob("*.html")}
    for mistake, message in (("../0_a/README.md#none", "none"), ("../0_a/x.py#L3", "x.py.html#L3")):
        (root / "1_b/README.md").write_text(f"# Second\n\n[x]({mistake})\n")
        with pytest.raises(SystemExit, match="2"):
            website.main(["--output", str(place)], root)
        assert message in capsys.readouterr().err
    assert {path: path.read_bytes() for path in place.rglob("*.html")} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["repository", "site"]
