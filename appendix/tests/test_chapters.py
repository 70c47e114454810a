"""The chapters: within their limits; the code, commands and tests that texts name."""

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


def test_within_the_limits(capsys):
    assert chapters.main() == 0, capsys.readouterr().out


def test_a_change_is_counted_and_carried(monkeypatch, tmp_path):
    """Broken by: a comment that counts; a copy in place of a merge."""
    old, new = (tmp_path / chapter for chapter in CHAPTERS[:2])
    for folder in (old, new):
        folder.mkdir()
        for name in ("a.py", "b.py"):
            (folder / name).write_text('"""A file."""\n\nfirst = 1\n')
    commit = "git init -q; git add .; git -c user.name=a -c user.email=a commit -qm a"
    subprocess.run(["bash", "-ec", commit], cwd=tmp_path, check=True)
    for module in (carry, chapters):
        monkeypatch.setattr(module, "ROOT", tmp_path)

    path = new / "b.py"
    path.write_text('"""It."""\n\n# Why.\ndef function(): return f"{1}"\n')
    figures, wrong = chapters.measure(new.name)
    expected = {"code": 7, "changed": 5, "removed": 2, "density": 7}
    assert expected.items() <= figures.items()
    assert wrong == [
        f"{path}: function has a comment in place of a docstring",
        f"{path} differs from the chapter before",
    ]

    by_hand = []
    for name in ("a.py", "b.py"):
        (old / name).write_text("first = 10\n")
        by_hand += carry.carry(Path(old.name, name))
    assert by_hand == [str(path)]
    assert (new / "a.py").read_text() == "first = 10\n"
    assert "def function" in path.read_text()


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_code_in_a_readme_is_that_of_today(chapter):
    """Broken by: a change of a line that a README shows."""
    readme = ROOT / chapter / "README.md"
    assert readme.read_text() == excerpts.current(readme)


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_commands_of_a_readme_are_accepted(chapter, monkeypatch, request):
    """Those of the train scripts, without a run or a file that the reader makes."""
    text = (ROOT / chapter / "README.md").read_text().replace("\\\n", "")
    train = r"^uv run (?:python|torchrun)[ \w.-]* (\w+_train(?:er)?)\b(?:\.py)?(.*)$"
    commands = re.findall(train, text, re.MULTILINE)
    assert commands
    monkeypatch.chdir(ROOT / chapter)
    conftest = request.config.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    with contextmanager(conftest.inside_chapter)(ROOT / chapter):
        for script, rest in commands:
            words = [script, "--print_config", *shlex.split(rest, comments=True)]
            files = [word for word in words if word.endswith(".yaml")]
            if "--resume" not in words and all(Path(name).exists() for name in files):
                monkeypatch.setattr(sys, "argv", words)
                with pytest.raises(SystemExit) as end:
                    importlib.import_module(script).main()
                assert not end.value.code, words


def test_each_promise_has_its_test():
    """.ci/run selects all tests, and fails if one is skipped that needs no GPU."""
    text = (ROOT / "appendix" / "README.md").read_text()
    table = text.partition("## What is promised")[2].partition("\n## ")[0]
    rows = re.findall(r"^\|.*`test_.*", table, re.MULTILINE)
    assert (
        len(rows) == table.count("\n|") - 2 >= 18
    )  # without the two lines of the head
    code = "".join(path.read_text() for path in ROOT.glob("*/tests/test_*.py"))
    names = re.findall(r"`(test_\w+)`", table)
    assert [name for name in names if f"def {name}(" not in code] == []
