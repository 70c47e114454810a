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
import pytest
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
    # What the printed command shows.
    added = 0
    for path in chapters.tracked("1_multi_gpu"):
        name = path.relative_to(ROOT / "1_multi_gpu")
        if name.parts[0] not in ("tests", "results") and name.suffix != ".md":
            before = ROOT / "0_setup" / name
            words = [str(before if before.exists() else "/dev/null"), str(path)]
            command = ["git", "diff", "--no-index", "--numstat", *words]
            counts = subprocess.run(command, capture_output=True, text=True).stdout
            added += int((counts or "0").split()[0])
    assert f"what is new (here {added} lines, with comments)" in text, added


def test_a_change_is_carried_and_overwrites_nothing(monkeypatch, tmp_path):
    """Broken by: carry() without ``theirs != before``."""
    for chapter in CHAPTERS[:2]:
        (tmp_path / chapter).mkdir()
        for name in "abc":
            (tmp_path / chapter / name).write_text("first = 1\nsecond = 2\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "start"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    for module in (carry, chapters):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(chapters, "PLAN", {})
    old, new = (tmp_path / chapter for chapter in CHAPTERS[:2])
    for name in "ab":
        (old / name).write_text("first = 10\nsecond = 2\n")
    (new / "b").write_text("first = 11\nsecond = 2\n")
    (old / "c").unlink()
    (new / "c").write_text("of its own\n")
    found = [copy for name in "abc" for copy in carry.carry(Path(CHAPTERS[0], name))]
    assert found == [f"{CHAPTERS[1]}/b", f"{CHAPTERS[1]}/c"]
    assert (new / "a").read_text() == (old / "a").read_text()
    assert "<<<<<<<" in (new / "b").read_text()
    assert (new / "c").read_text() == "of its own\n"
    assert chapters.differences(CHAPTERS[1]) == [
        f"{CHAPTERS[1]}/c is not listed",
        f"{CHAPTERS[1]}/b differs from {CHAPTERS[0]}/b",
    ]


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
