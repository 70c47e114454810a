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


@pytest.fixture
def repository(monkeypatch, tmp_path):
    """Two chapters, with the same two files."""
    for chapter in CHAPTERS[:2]:
        (tmp_path / chapter).mkdir()
        for name in ("a.py", "b.py"):
            (tmp_path / chapter / name).write_text('"""A file."""\n\nfirst = 1\n')
    git = ["git", "-c", "user.name=a", "-c", "user.email=a"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "start"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    for module in (carry, chapters):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    return tmp_path


def test_a_change_is_counted_and_has_to_be_allowed(repository):
    """Broken by: a docstring or a comment that counts."""
    path = repository / CHAPTERS[1] / "a.py"
    path.write_text(
        '"""It."""\n\nfirst = 1\n# Why.\ndef function(): return f"{first}"\n'
    )
    figures, wrong = chapters.measure(CHAPTERS[1])
    expected = {"code": 7, "changed": 4, "removed": 1, "density": 5}
    assert expected.items() <= figures.items()
    assert wrong == [
        f"{path}: function has a comment in place of a docstring",
        f"{path} differs from the chapter before",
    ]


def test_a_change_is_carried_and_overwrites_nothing(repository):
    """Broken by: copying the file."""
    old, new = (repository / chapter for chapter in CHAPTERS[:2])
    (new / "b.py").write_text("first = 11\n")
    found = []
    for name in ("a.py", "b.py"):
        (old / name).write_text("first = 10\n")
        found += carry.carry(Path(CHAPTERS[0], name))
    assert found == [str(new / "b.py")]
    assert (new / "a.py").read_text() == "first = 10\n"
    assert "first = 11\n" in (new / "b.py").read_text()


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
    rows = re.findall(r"^\| (?!promise|#).*", table, re.MULTILINE)
    assert len(rows) >= 18
    code = "".join(path.read_text() for path in ROOT.glob("*/tests/test_*.py"))
    for row in rows:
        tests = re.findall(r"`(test_\w+)`", row)
        assert tests, row
        assert [name for name in tests if f"def {name}(" not in code] == []
