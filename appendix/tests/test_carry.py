"""A change reaches all later copies, keeps what they have of their own, and loses nothing."""

import subprocess
from pathlib import Path

import carry
import pytest

CODE = "".join(f"line {n}\n" for n in range(1, 21))
CHAPTERS = ("0_a", "1_b", "2_c")


def edited(text: str, **lines: str) -> str:
    """The text with some lines replaced, given as ``l3="another third line"``."""
    rows = text.splitlines(keepends=True)
    for name, line in lines.items():
        rows[int(name[1:]) - 1] = line + "\n"
    return "".join(rows)


@pytest.fixture
def root(repository, commit) -> Path:
    """Three committed chapters: the second has changed line 10, and the third line 12 as well."""
    (repository / "appendix").mkdir()
    (repository / "appendix/chapters.yaml").write_text(
        "1_b: {changes: {f.py: ten}}\n"
        "2_c: {changes: {f.py: twelve}, leaves: {left.py: only before, bench/: only before}}\n"
    )
    (repository / ".gitignore").write_text("output/\n")
    ten = edited(CODE, l10="ten in 1_b")
    for name, text in zip(CHAPTERS, (CODE, ten, edited(ten, l12="twelve in 2_c")), strict=True):
        (repository / name / "src").mkdir(parents=True)
        (repository / name / "f.py").write_text(text)
        (repository / name / "src/same.py").write_text(CODE)
        (repository / name / "README.md").write_text(name)
        if name != "2_c":
            (repository / name / "left.py").write_text(CODE)
    commit(repository)
    return repository


def texts(root: Path) -> dict[str, bytes]:
    paths = [path for name in CHAPTERS for path in (root / name).rglob("*") if path.is_file()]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def run(root: Path, capsys, *words: str) -> tuple[int, list[str]]:
    """The exit code and the lines that were printed."""
    code = carry.main(list(words), root)
    return code, capsys.readouterr().out.splitlines()


def change(root: Path, path: str, **lines: str) -> None:
    (root / path).write_text(edited((root / path).read_text(), **lines))


def test_a_change_travels_through_all_chapters(root, capsys):
    change(root, "0_a/f.py", l3="three")
    change(root, "0_a/src/same.py", l3="three")
    assert run(root, capsys, "0_a/f.py") == (0, ["1_b/f.py: merged", "2_c/f.py: merged"])
    assert (root / "1_b/f.py").read_text() == edited(CODE, l3="three", l10="ten in 1_b")
    all_three = edited(CODE, l3="three", l10="ten in 1_b", l12="twelve in 2_c")
    assert (root / "2_c/f.py").read_text() == all_three
    assert (root / "1_b/src/same.py").read_text() == CODE  # was not asked for
    assert run(root, capsys, "0_a/src/same.py")[1][1] == "2_c/src/same.py: copied"
    assert (root / "2_c/src/same.py").read_bytes() == (root / "0_a/src/same.py").read_bytes()


def test_twice_is_once(root, capsys):
    change(root, "0_a/f.py", l3="three", l20="twenty\ntwenty-one")
    change(root, "0_a/src/same.py", l3="three")
    (root / "0_a/new.py").write_text("new\n")
    (root / "0_a/left.py").unlink()
    assert run(root, capsys)[0] == 0
    after = texts(root)
    code, lines = run(root, capsys)
    assert (code, texts(root)) == (0, after)
    assert lines == [
        "1_b/f.py: has it already",
        "2_c/f.py: has it already",
        "1_b/left.py: deleted already",
        "2_c/left.py: left behind there",
        "1_b/new.py: identical already",
        "2_c/new.py: identical already",
        "1_b/src/same.py: identical already",
        "2_c/src/same.py: identical already",
    ]


def test_what_the_middle_chapter_changed_goes_on_from_there(root, capsys):
    change(root, "1_b/f.py", l18="eighteen")
    assert run(root, capsys) == (0, ["2_c/f.py: merged"])
    assert (root / "0_a/f.py").read_text() == CODE
    assert "eighteen" in (root / "2_c/f.py").read_text()


def test_all_that_changed_starts_at_its_first_chapter(root, capsys):
    change(root, "0_a/f.py", l3="three")
    change(root, "1_b/f.py", l18="eighteen")
    lines = ["1_b/f.py: merged (it had uncommitted changes)", "2_c/f.py: merged"]
    assert run(root, capsys) == (0, lines)
    expected = edited(CODE, l3="three", l10="ten in 1_b", l12="twelve in 2_c", l18="eighteen")
    assert (root / "2_c/f.py").read_text() == expected


def test_a_conflict_leaves_that_copy_and_the_next_ones(root, capsys):
    change(root, "0_a/f.py", l10="ten in 0_a", l1="one")
    before = texts(root)
    code, lines = run(root, capsys, "0_a/f.py")
    assert (code, texts(root)) == (1, before)
    assert lines == [
        "1_b/f.py: conflict",
        "line 10:",
        "<<<<<<< 1_b/f.py",
        "ten in 1_b",
        "=======",
        "ten in 0_a",
        ">>>>>>> 0_a/f.py",
        "settle 1_b/f.py by hand, then run: appendix/carry.py 1_b/f.py",
    ]


def test_a_conflict_further_on_keeps_what_was_merged(root, capsys):
    change(root, "0_a/f.py", l12="twelve in 0_a")
    before = texts(root)
    code, lines = run(root, capsys, "0_a/f.py")
    assert (code, lines[:2]) == (1, ["1_b/f.py: merged", "2_c/f.py: conflict"])
    assert texts(root)["2_c/f.py"] == before["2_c/f.py"]
    assert "twelve in 0_a" in (root / "1_b/f.py").read_text()


def test_markers_then_settled_by_hand_then_onwards(root, capsys):
    change(root, "0_a/f.py", l10="ten in 0_a")
    third = (root / "2_c/f.py").read_bytes()
    assert run(root, capsys, "0_a/f.py", "--markers")[0] == 1
    assert "<<<<<<< 1_b/f.py\nten in 1_b\n=======" in (root / "1_b/f.py").read_text()
    assert (root / "2_c/f.py").read_bytes() == third
    # Until it is settled nothing may spread.
    told = ["1_b/f.py: conflict: it still holds the markers of one"]
    assert run(root, capsys, "0_a/f.py") == (1, told)
    assert run(root, capsys, "1_b/f.py") == (1, told)
    (root / "1_b/f.py").write_text(edited(CODE, l10="ten in both"))
    assert run(root, capsys, "1_b/f.py") == (0, ["2_c/f.py: merged"])
    both = edited(CODE, l10="ten in both", l12="twelve in 2_c")
    assert (root / "2_c/f.py").read_text() == both


def test_dry_run_writes_nothing(root, capsys):
    change(root, "0_a/f.py", l3="three")
    (root / "0_a/new.py").write_text("new\n")
    (root / "0_a/src/same.py").unlink()
    before = texts(root)
    code, said = run(root, capsys, "--dry-run")
    assert (code, texts(root)) == (0, before)
    assert run(root, capsys) == (0, said)
    assert texts(root) != before


def test_a_new_file_goes_where_it_is_not_left_behind(root, capsys):
    (root / "0_a/bench").mkdir()
    (root / "0_a/bench/new.py").write_text("#!\n")
    (root / "0_a/bench/new.py").chmod(0o755)
    lines = ["1_b/bench/new.py: copied", "2_c/bench/new.py: left behind there"]
    assert run(root, capsys, "0_a/bench/new.py") == (0, lines)
    assert (root / "1_b/bench/new.py").stat().st_mode & 0o777 == 0o755
    assert not (root / "2_c/bench").exists()


def test_a_new_file_that_a_later_chapter_has_otherwise(root, capsys):
    (root / "0_a/new.py").write_text("new\n")
    (root / "2_c/new.py").write_text("other\n")
    code, lines = run(root, capsys, "0_a/new.py")
    assert (code, lines[:2]) == (1, ["1_b/new.py: copied", "2_c/new.py: conflict"])
    assert (root / "2_c/new.py").read_text() == "other\n"


def test_a_deletion(root, capsys):
    (root / "0_a/src/same.py").unlink()
    (root / "0_a/f.py").unlink()
    code, lines = run(root, capsys)
    assert code == 1
    assert lines[0] == "1_b/f.py: conflict: 0_a/f.py is gone, 1_b/f.py has changed"
    assert lines[2:] == ["1_b/src/same.py: deleted", "2_c/src/same.py: deleted"]
    assert (root / "1_b/f.py").exists()
    assert not (root / "2_c/src/same.py").exists()


def test_a_copy_that_is_gone_is_not_brought_back(root, capsys):
    change(root, "0_a/f.py", l3="three")
    (root / "1_b/f.py").unlink()
    code, lines = run(root, capsys, "0_a/f.py")
    assert (code, lines[0]) == (1, "1_b/f.py: conflict: 1_b/f.py is gone, 0_a/f.py has changed")
    assert not (root / "1_b/f.py").exists()


def test_modes(root, capsys, commit):
    (root / "0_a/f.py").chmod(0o755)
    (root / "1_b/src/same.py").chmod(0o755)
    commit(root)
    (root / "0_a/f.py").chmod(0o644)
    change(root, "0_a/src/same.py", l3="three")
    (root / "1_b/f.py").chmod(0o755)
    assert run(root, capsys)[0] == 0
    assert (root / "1_b/f.py").stat().st_mode & 0o777 == 0o644  # taken over
    assert (root / "1_b/src/same.py").stat().st_mode & 0o777 == 0o755  # its own
    assert (root / "2_c/src/same.py").stat().st_mode & 0o777 == 0o644


def test_binary_files_and_links_are_not_merged(root, capsys, commit):
    for name in CHAPTERS:
        (root / name / "data").write_bytes(b"\0one\n")
        (root / name / "link").symlink_to("src")
    (root / "2_c/data").write_bytes(b"\0three\n")
    commit(root)
    (root / "0_a/data").write_bytes(b"\0two\n")
    (root / "0_a/link").unlink()
    (root / "0_a/link").symlink_to("f.py")
    code, lines = run(root, capsys)
    assert code == 1
    assert lines[0] == "1_b/data: copied"
    assert lines[1].startswith("2_c/data: conflict: 1_b/data has changed as well")
    assert (root / "2_c/data").read_bytes() == b"\0three\n"
    assert lines[3:] == ["1_b/link: copied", "2_c/link: copied"]
    assert (root / "2_c/link").readlink() == Path("f.py")


def test_an_older_base_and_a_chapter_that_is_not_committed(root, capsys):
    """A copy that no commit holds is merged from what it was a copy of."""
    change(root, "0_a/f.py", l3="three")
    subprocess.run(["git", "rm", "-rq", "--cached", "1_b", "2_c"], cwd=root, check=True)
    subprocess.run(["git", "add", "0_a"], cwd=root, check=True)
    words = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-qm", "a"]
    subprocess.run(words, cwd=root, check=True)
    assert run(root, capsys, "0_a/f.py") == (0, ["0_a/f.py: no change since HEAD (see --base)"])
    assert run(root, capsys, "0_a/f.py", "--base", "HEAD~1")[1][1] == "2_c/f.py: merged"
    change(root, "0_a/f.py", l18="eighteen")
    assert run(root, capsys, "0_a/f.py")[0] == 0
    expected = edited(CODE, l3="three", l10="ten in 1_b", l12="twelve in 2_c", l18="eighteen")
    assert (root / "2_c/f.py").read_text() == expected
    after = texts(root)
    assert run(root, capsys, "0_a/f.py")[0] == 0
    assert texts(root) == after


def test_paths_may_be_relative_to_a_chapter(root, capsys, monkeypatch):
    change(root, "0_a/src/same.py", l3="three")
    monkeypatch.chdir(root / "0_a" / "src")
    assert run(root, capsys, "same.py")[1][0] == "1_b/src/same.py: copied"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["0_a/README.md"], "0_a/README.md is the chapter's own"),
        (["0_a/nothing.py"], "0_a/nothing.py is no file of a chapter"),
        (["0_a/output/run"], "or one that git ignores"),
        (["0_a/src"], "0_a/src is no file of a chapter"),
        (["appendix/chapters.yaml"], "is no file of a chapter"),
        (["--base", "nowhere"], "nowhere is no commit"),
    ],
)
def test_a_mistake_is_one_line(root, capsys, words, told):
    (root / "0_a/output").mkdir()
    (root / "0_a/output/run").write_text("")
    with pytest.raises(SystemExit) as stopped:
        carry.main(words, root)
    assert stopped.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert ": error: " in message
    assert told in message


def test_nothing_to_do(root, capsys):
    (root / "0_a/README.md").write_text("another")
    assert run(root, capsys) == (0, ["nothing changed since HEAD"])


def test_an_interrupted_write_leaves_the_old_file(root, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        carry.write(root / "0_a/f.py", carry.Content(b"half"))
    assert (root / "0_a/f.py").read_text() == CODE
    assert sorted(path.name for path in (root / "0_a").iterdir()) == sorted(
        ["README.md", "f.py", "left.py", "src"]
    )
