"""Exercises: unanswered they are not right, the solutions are, and wrong answers are told why."""

import importlib.util
import re
import subprocess
import sys

import pytest
import yaml
from src.config import CHAPTER

EXERCISES = CHAPTER / "exercises/"
NAMES = sorted(path.parent.name for path in EXERCISES.glob("*/answer.py"))
WRONG = [
    (name, wrong)
    for name in NAMES
    for wrong in yaml.safe_load((EXERCISES / name / "wrong_answers.yaml").read_text())
]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXERCISES / "check.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def fault_of():
    """What the command does for each answer."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(str(CHAPTER))
        spec = importlib.util.spec_from_file_location("check", EXERCISES / "check.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module.fault_of


def test_there_are_three_and_more():
    assert len(NAMES) >= 3
    assert all(len([one for one in WRONG if one[0] == name]) >= 3 for name in NAMES)


def test_unanswered_is_not_right_and_says_why():
    done = run()
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert [line.split()[2] for line in lines] == NAMES
    assert all(re.match(r"not yet +\w+  .{15}", line) for line in lines), done.stdout
    assert "Error" not in done.stdout + done.stderr  # it says what is wrong, and not where it broke


def test_solutions_are_right():
    done = run("--solutions")
    assert done.returncode == 0, done.stdout
    assert [line.split() for line in done.stdout.splitlines()] == [["right", n] for n in NAMES]


@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_wrong_answers_are_told_why(fault_of, tmp_path, name, wrong):
    """A change of the solution, and what the check says of it."""
    solution = (EXERCISES / name / "solution.py").read_text()
    assert wrong["change"] in solution
    answer = tmp_path / "answer.py"
    answer.write_text(solution.replace(wrong["change"], wrong["into"]))
    assert wrong["says"] in fault_of(name, answer)


def test_what_is_no_answer_is_one_line(fault_of, tmp_path):
    answer = tmp_path / "answer.py"
    for text, says in {
        "": "AttributeError",
        "def (": "SyntaxError in line 1",
        "\n1 / 0": "ZeroDivisionError in line 2",
        "raise NotImplementedError": "nothing is there yet",
    }.items():
        answer.write_text(text)
        fault = fault_of(NAMES[0], answer)
        assert fault.startswith(says)
        assert "\n" not in fault


def test_unknown_name_is_one_line():
    done = run("nothing")
    assert done.returncode == 1
    assert done.stderr == f"error: nothing is no exercise; allowed: {', '.join(NAMES)}\n"
