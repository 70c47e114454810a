"""The rebuilt chapters: within budget, identical where they have to be; their READMEs' commands."""

import importlib
import re
import shlex
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import carry
import chapters
import excerpts
import measures
import one_curve
import pytest
import record
from chapters import CHAPTERS, ROOT
from measures import code_lines, is_code, is_test


def test_within_budget_and_identical(capsys):
    assert chapters.main() == 0, capsys.readouterr().out


def test_the_landing_page_has_these_sizes():
    """New lines, and minutes to read the README at 150 words a minute."""
    text = (ROOT / "README.md").read_text()
    for chapter in CHAPTERS:
        new = 0
        for path in chapters.tracked(chapter):
            if is_code(path) and not is_test(path):
                new += len(
                    chapters.new_lines(chapter, str(path.relative_to(ROOT / chapter)))
                )
        minutes = round(chapters.words(chapter) / 150)
        (row,) = re.findall(rf"^\| \[{chapter}\].*", text, re.MULTILINE)
        assert row.endswith(f"| {new} | {minutes} |"), (new, minutes)
    reached = chapters.imported(CHAPTERS[-1], "lightning_train.py")
    lines = sum(len(code_lines(path)) for path in reached)
    assert f"**You can read this: {lines} lines**" in text, lines


@pytest.fixture
def two_chapters(monkeypatch, tmp_path) -> Path:
    """A repository with one file in two chapters."""
    for chapter in CHAPTERS[:2]:
        (tmp_path / chapter).mkdir()
        (tmp_path / chapter / "a.py").write_text("first = 1\nsecond = 2\nthird = 3\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "start"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    for module in (carry, chapters):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(chapters, "PLAN", {})
    return tmp_path


def test_a_difference_is_reported_and_carried(two_chapters):
    old, new = (two_chapters / chapter / "a.py" for chapter in CHAPTERS[:2])
    old.write_text(old.read_text().replace("first = 1", "first = 10"))
    assert chapters.differences(CHAPTERS[1]) == [
        f"{CHAPTERS[1]}/a.py differs from {CHAPTERS[0]}/a.py"
    ]
    assert carry.carry(Path(CHAPTERS[0], "a.py")) == []
    assert chapters.differences(CHAPTERS[1]) == []
    assert new.read_text().startswith("first = 10\n")


def test_a_plan_that_is_wrong_is_reported(two_chapters, monkeypatch):
    """Broken by: differences() that believes the plan."""
    plan = {"adds": ["a.py"], "leaves": ["b.py"], "changes": ["a.py"]}
    monkeypatch.setattr(chapters, "PLAN", {CHAPTERS[1]: plan})
    assert chapters.differences(CHAPTERS[1]) == [
        f"{CHAPTERS[1]} adds a.py, which {CHAPTERS[0]} has",
        f"{CHAPTERS[1]} leaves b.py, not in {CHAPTERS[0]}",
    ]


def test_a_conflict_is_reported_and_left_in_the_file(two_chapters):
    old, new = (two_chapters / chapter / "a.py" for chapter in CHAPTERS[:2])
    old.write_text("first = 10\nsecond = 2\nthird = 3\n")
    new.write_text("first = 11\nsecond = 2\nthird = 3\n")
    assert carry.carry(Path(CHAPTERS[0], "a.py")) == [f"{CHAPTERS[1]}/a.py"]
    assert "<<<<<<<" in new.read_text()


def test_a_later_version_of_its_own_is_neither_overwritten_nor_removed(two_chapters):
    """Broken by: carry() without ``theirs != before``. Copies that are the same do follow."""
    name = Path(CHAPTERS[0], "b.py")
    later = two_chapters / CHAPTERS[1] / "b.py"
    (two_chapters / name).write_text("new = 1\n")
    later.write_text("of_its_own = 1\n")
    assert carry.carry(name) == [f"{CHAPTERS[1]}/b.py"]
    assert later.read_text() == "of_its_own = 1\n"
    later.unlink()
    assert carry.carry(name) == []
    assert later.read_text() == "new = 1\n"

    name = Path(CHAPTERS[0], "a.py")
    later = two_chapters / CHAPTERS[1] / "a.py"
    same = later.read_text()
    later.write_text("of_its_own = 1\n")
    (two_chapters / name).unlink()
    assert carry.carry(name) == [f"{CHAPTERS[1]}/a.py"]
    assert later.exists()
    later.write_text(same)
    assert carry.carry(name) == []
    assert not later.exists()


@pytest.mark.parametrize("name", [f"{CHAPTERS[0]}/misspelt.py", "README.md"])
def test_a_path_that_is_no_file_of_a_chapter_is_an_error(two_chapters, name):
    """Broken by: a change that is carried nowhere, without a word."""
    with pytest.raises(SystemExit, match=name):
        carry.carry(Path(name))


def test_what_costs_and_what_is_free(two_chapters):
    """Tokens of new lines cost; docstrings, comments and line breaks are free."""
    text = '"""Doc."""\n\n# no\nfirst = 1\nnew = [\n    4,\n]\n'
    (two_chapters / CHAPTERS[1] / "a.py").write_text(text)
    assert sum(chapters.new_lines(CHAPTERS[1], "a.py")) == len(
        ["new", "=", "[", "4", ",", "]"]
    )


def test_what_is_dense_is_named(tmp_path):
    """Broken by: each of the four functions of measures.py that returns nothing."""
    path = tmp_path / "a.py"
    body = "\n".join(["    a = 1"] * 45)
    path.write_text(
        f"# A comment.\ndef f():\n{body}\n\na, b = 1, 2\n" + "a = 1\n" * 160
    )
    assert measures.too_long(path) == ["has 207 lines, of 200", "f has 45 lines, of 40"]
    assert measures.tuple_assignments(path) == 1
    assert measures.comments_in_place_of_docstrings(path) == ["line 2, f"]


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_commands_of_a_readme_are_accepted(chapter, monkeypatch, request):
    """The train scripts' command lines are parsed; those that need what a reader makes are not."""
    text = (ROOT / chapter / "README.md").read_text().replace("\\\n", "")
    train = r"^uv run (?:python|torchrun)[ \w.-]* (\w+_train(?:er)?)\b(?:\.py)?(.*)$"
    commands = re.findall(train, text, re.MULTILINE)
    words = [
        [script, *shlex.split(rest, comments=True)]
        for script, rest in commands
        if not re.search(r"run_1|--resume s3|(mine|air).yaml| my.yaml", rest)
    ]
    assert len(words) >= 5
    monkeypatch.chdir(ROOT / chapter)
    conftest = request.config.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    with contextmanager(conftest.inside_chapter)(ROOT / chapter):
        for script, *arguments in words:
            if not any(word.endswith("help") for word in arguments):
                arguments.append("--print_config")
            monkeypatch.setattr(sys, "argv", [script, *arguments])
            with pytest.raises(SystemExit) as end:
                importlib.import_module(script).main()
            assert not end.value.code, (script, arguments)


def test_each_promise_has_its_test():
    """.ci/run selects all tests, and fails if one is skipped that needs no GPU."""
    text = (
        (ROOT / "appendix" / "README.md")
        .read_text()
        .partition("## What is promised")[2]
    )
    rows = re.findall(r"^\| .* \| (\d) \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) > 25
    for number, tests in rows:
        (folder,) = ROOT.glob(f"{number}_*")
        code = "".join(path.read_text() for path in folder.glob("tests/test_*.py"))
        assert all(
            f"def {name}(" in code for name in re.findall(r"`(test_\w+)`", tests)
        ), tests


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_code_in_a_readme_is_that_of_today(chapter):
    """Broken by: a change of a line that a README shows."""
    readme = ROOT / chapter / "README.md"
    assert readme.read_text() == excerpts.current(readme)


def test_what_an_excerpt_shows():
    code = "def f():\n    first = 1\n    last = 2\n    more = 3\n"
    assert excerpts.lines_between(code, "first", "last") == "first = 1\nlast = 2"
    hunk = excerpts.hunk_with(code, code.replace("last = 2", "last = 4"), "last")
    assert hunk == " first = 1\n-last = 2\n+last = 4\n more = 3"


@pytest.mark.parametrize("code", [0, 3])
def test_a_training_that_ends_before_its_kill_is_an_error(tmp_path, code):
    """Broken by: a picture that claims a kill; ProcessLookupError in place of the fault."""
    command = [sys.executable, "-c", f"raise SystemExit({code})"]
    with pytest.raises(SystemExit, match=f"exit code {code}, before"):
        one_curve.train_and_kill(command, tmp_path, tmp_path / "run", last_step=9)


@pytest.mark.parametrize(
    "marker", ["code a.py: gone", "code a.py: first ... gone", "diff a.py b.py: gone"]
)
def test_a_marker_whose_lines_are_gone_is_named(tmp_path, marker):
    """Broken by: a bare StopIteration or IndexError."""
    (tmp_path / "a.py").write_text("first = 1\n")
    (tmp_path / "b.py").write_text("second = 2\n")
    readme = tmp_path / "README.md"
    readme.write_text(f"<!-- {marker} -->\n<!-- end -->")
    with pytest.raises(SystemExit, match=r"a\.py.*: no line with 'gone'"):
        excerpts.current(readme)


def test_a_record_that_is_not_there_is_named(tmp_path, monkeypatch):
    """Broken by: a misspelt name that records nothing, with exit code 0."""
    (tmp_path / "README.md").write_text("<!-- record default: true -->\n<!-- end -->")
    monkeypatch.setattr(sys, "argv", ["record.py", str(tmp_path), "nothing"])
    with pytest.raises(SystemExit, match="no record nothing; there are: default"):
        record.main()
