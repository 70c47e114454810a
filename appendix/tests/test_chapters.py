"""The check of the list finds every difference, and the table counts as git does."""

import os
import subprocess
from pathlib import Path

import chapters
import pytest

PLAN = """\
1_b:
  adds:
    src/new.py: what is | new
    tests/test_new.py: its test
  changes:
    src/same.py: two lines
  leaves:
    bench/: stays behind
2_c: {}
"""


def git(root: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", *words]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout


def put(folder: Path, texts: dict[str, str]) -> None:
    """Write files, path by path."""
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """Three chapters that agree with their list."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)  # under a hook they name the repository that is tested
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    git(tmp_path, "init", "-q")
    old = {"src/same.py": "1\n2\n3\n", "src/fix.py": "x\n", "bench/one.py": "1\n2\n"}
    put(tmp_path / "0_a", {**old, "bench/two.py": "1\n", "results/a": "1\n", "README.md": "0_a"})
    new = {"src/same.py": "1\n2b\n3\n4\n", "src/fix.py": "x\n", "src/new.py": "n\nm\n"}
    for name in ("1_b", "2_c"):
        own = {"results/b": name, "README.md": name, "output/run": name}
        put(tmp_path / name, {**new, "tests/test_new.py": "t\n", **own})
    (tmp_path / ".gitignore").write_text("output/\n")
    (tmp_path / "appendix").mkdir()
    (tmp_path / chapters.LIST).write_text(PLAN)
    return tmp_path


def test_agreement(root, capsys):
    assert chapters.chapters(root) == ["0_a", "1_b", "2_c"]
    assert chapters.check(root) == []
    assert chapters.main([], root) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_an_ignored_folder_is_no_chapter(root):
    put(root, {"3_d/output/run": "x"})
    assert chapters.chapters(root) == ["0_a", "1_b", "2_c"]


def test_a_change_that_is_not_listed(root, capsys):
    put(root, {"1_b/src/fix.py": "y\n"})
    first, second = chapters.check(root)
    assert first.startswith("1_b/src/fix.py differs from 0_a")
    assert "appendix/carry.py 0_a/src/fix.py" in first
    assert "changes in appendix/chapters.yaml" in first
    assert second.startswith("2_c/src/fix.py differs from 1_b")
    assert chapters.main([], root) == 1
    assert capsys.readouterr().out.splitlines() == [first, second]


def test_a_file_that_is_new_and_not_listed(root):
    put(root, {"2_c/src/other.py": ""})
    (problem,) = chapters.check(root)
    assert problem.startswith("2_c/src/other.py is not in 1_b")
    assert "under adds" in problem


@pytest.mark.parametrize("is_tracked", [True, False])
def test_a_file_that_is_missing(root, is_tracked):
    if is_tracked:
        git(root, "add", ".")  # deleted on disk, git still lists it
    (root / "2_c/src/fix.py").unlink()
    (problem,) = chapters.check(root)
    assert problem.startswith("2_c/src/fix.py is missing, 1_b has it")
    assert "under leaves" in problem


def test_the_mode_counts(root):
    (root / "2_c/src/fix.py").chmod(0o755)
    (problem,) = chapters.check(root)
    assert problem.startswith("2_c/src/fix.py differs")
    assert "| [`src/fix.py`](src/fix.py) | mode |" in chapters.what_changed(root, "2_c")


def test_links_are_compared_by_where_they_point(root):
    for name in ("0_a", "1_b", "2_c"):
        (root / name / "link").symlink_to("src")
    (root / "0_a" / "broken").symlink_to("nowhere")
    assert [p.split(" ")[0] for p in chapters.check(root)] == ["1_b/broken"]
    (root / "2_c/link").unlink()
    (root / "2_c/link").symlink_to("tests")
    assert "2_c/link differs from 1_b" in chapters.check(root)[1]
    assert "| [`link`](link) | +1 −1 |" in chapters.what_changed(root, "2_c")
    (root / "2_c/link").unlink()
    (root / "2_c/link").write_text("src")
    assert "2_c/link differs from 1_b" in chapters.check(root)[1]


@pytest.mark.parametrize(
    ("section", "entry", "reason"),
    [
        ("changes", "src/fix.py", "src/fix.py is identical"),
        ("changes", "src/gone.py", "neither chapter has it"),
        ("changes", "src/new.py", "src/new.py is new"),
        ("adds", "src/gone.py", "neither chapter has it"),
        ("adds", "src/fix.py", "src/fix.py is identical"),
        ("adds", "src/same.py", "src/same.py is in both"),
        ("leaves", "src/fix.py", "src/fix.py is identical"),
        ("leaves", "src/same.py", "src/same.py is in both"),
        ("leaves", "src/", "src/fix.py is identical"),
        ("leaves", "src/gone.py", "neither chapter has it"),
    ],
)
def test_an_entry_that_is_not_true(root, section, entry, reason):
    text = PLAN.replace(f"  {section}:\n", f"  {section}:\n    {entry}: untrue\n")
    (root / chapters.LIST).write_text(text)
    found = [problem for problem in chapters.check(root) if f"lists {entry} under" in problem]
    assert len(found) == 1
    assert f"under {section} of 1_b, but {reason}" in found[0]


def test_own_files_need_no_entry_and_may_have_one(root):
    text = PLAN.replace("  changes:\n", "  changes:\n    README.md: its own\n")
    (root / chapters.LIST).write_text(text.replace("  leaves:\n", "  leaves:\n    results/: own\n"))
    assert chapters.check(root) == []
    assert "README.md`" not in chapters.what_changed(root, "1_b")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1_b:\n  add:\n    a: b\n", "1_b needs sections"),
        ("1_b:\n  adds:\n    a:\n", "1_b needs sections"),
        ("1_b:\n  adds: [a]\n", "appendix/chapters.yaml: "),
        ("- 1_b\n", "appendix/chapters.yaml: "),
        ("1_b: {\n", "appendix/chapters.yaml: "),
        (None, "No such file"),
    ],
)
def test_a_list_of_another_form_is_one_line(root, capsys, text, told):
    (root / chapters.LIST).unlink()
    if text is not None:
        (root / chapters.LIST).write_text(text)
    with pytest.raises(SystemExit) as stopped:
        chapters.main([], root)
    assert stopped.value.code == 2
    assert told in capsys.readouterr().err.splitlines()[-1]


def test_a_chapter_that_does_not_exist(root):
    (root / chapters.LIST).write_text(PLAN + "7_x: {}\n0_a: {}\n")
    wrong = [f"{chapters.LIST}: {name} follows no chapter" for name in ("7_x", "0_a")]
    assert chapters.check(root) == wrong
    for name in ("7_x", "0_a"):
        with pytest.raises(chapters.UserError, match=f"before {name}: give one of 1_b, 2_c"):
            chapters.what_changed(root, name)


def test_the_table_is_in_reading_order(root):
    assert chapters.what_changed(root, "1_b").splitlines() == [
        "| file | lines | what it is |",
        "|---|---|---|",
        "| [`src/new.py`](src/new.py) | +2 | what is \\| new |",
        "| [`src/same.py`](src/same.py) | +2 −1 | two lines |",
        "| [`tests/test_new.py`](tests/test_new.py) | +1 | its test |",
        "| [`0_a/bench/`](../0_a/bench/) | −3 | stays behind |",
        "",
        "Files against `0_a`: 1 byte-identical, 2 added, 1 changed, 2 left behind, not counting "
        "README.md and results/.",
    ]


def test_between_distant_chapters_the_phrase_is_of_what_happened(root):
    """A file that is added, then changed: against the first chapter it is new."""
    put(root, {"2_c/src/new.py": "n2\n", "2_c/src/same.py": "1\n"})
    late = "2_c:\n  changes:\n    src/same.py: one line\n    src/new.py: another line\n"
    (root / chapters.LIST).write_text(PLAN.replace("2_c: {}\n", late))
    assert chapters.check(root) == []
    found = chapters.differences(root, "0_a", "2_c")
    assert [(one.path, one.phrase) for one in found[:2]] == [
        ("src/new.py", "what is | new"),
        ("src/same.py", "one line"),
    ]


def test_the_numbers_are_those_of_git(root):
    """Before a commit the working tree counts; after it git, asked as readers do, agrees."""
    old = "".join(f"line {n}\n" for n in range(60))
    new = old.replace("line 7\n", "seven\nand a half\n").replace("line 30\n", "") + "no newline"
    put(root, {"0_a/src/long.py": old, "1_b/src/long.py": new, "1_b/empty": ""})
    (root / "0_a/data").write_bytes(b"\0\1")
    (root / "1_b/data").write_bytes(b"\0\2")
    found = {one.path: one.lines for one in chapters.differences(root, "0_a", "1_b")}
    git(root, "add", ".")
    git(root, "commit", "-qm", "all")
    rows = git(root, "diff", "--numstat", "--no-renames", "HEAD:0_a", "HEAD:1_b").splitlines()
    expected = {}
    for added, removed, path in (row.split("\t") for row in rows):
        if not chapters.is_own(path):
            expected[path] = None if added == "-" else (int(added), int(removed))
    assert found == expected
    assert found["src/long.py"] == (3, 2)
    assert found["data"] is None
    # An edit that nobody has committed counts.
    put(root, {"1_b/src/long.py": new + "\nmore"})
    found = {one.path: one.lines for one in chapters.differences(root, "0_a", "1_b")}
    assert found["src/long.py"] == (4, 2)


def test_this_repository():
    if subprocess.run(["git", "rev-parse"], cwd=chapters.ROOT, capture_output=True).returncode:
        pytest.skip("not a git checkout")
    assert chapters.check(chapters.ROOT) == []
