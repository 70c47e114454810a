"""The walk through the READMEs: what it runs, where, and what it says of what fails."""

import json
import re

import psutil
import pytest
import terminal
import walk
from measure import ROOT

README = """
Text, with `uv run
python there.py` in it, and with `test -e here`.

<!-- [[[cog f("uv run python made.py") ]]] -->
`uv run python made.py`
<!-- [[[end]]] -->

```bash
cd 0_first
NAME=$(echo reader)
echo "hello $NAME" \\
  > greeting.txt   # a remark
test -e greeting.txt
```

1. An exercise:

   ```bash
   python3 0_first/where.py
   exit-code-of-nothing
   python3 server.py
   ```

```console
$ `uv run python shown.py`
```

`uv run python there.py` again, and `git diff --stat`.
"""
SERVER = """
import sys, time
print("ready", flush=True)
try:
    time.sleep(600)
except KeyboardInterrupt:
    sys.exit(0)
sys.exit(7)
"""


@pytest.fixture
def book(repository, commit):
    """A repository with one chapter."""
    root = repository
    (root / "0_first" / "src").mkdir(parents=True)
    (root / "0_first" / "src" / "__init__.py").touch()
    (root / "appendix").mkdir()
    (root / "0_first" / "README.md").write_text(README)
    (root / "0_first" / "where.py").write_text("print('at the root')\n")
    (root / "0_first" / "server.py").write_text(SERVER)
    (root / "appendix" / "walk.yaml").write_text(
        "0_first/README.md:\n  python3 server.py: {until: ready}\n"
        "  uv run python there.py: {not: it is not there}\n"
    )
    commit(root)
    return root


def test_commands_are_found():
    """In blocks, and each once inside of sentences; not what is generated, or what was printed."""
    assert walk.commands(README) == [
        "uv run python there.py",
        "cd 0_first",
        "NAME=$(echo reader)",
        'echo "hello $NAME" > greeting.txt',
        "test -e greeting.txt",
        "python3 0_first/where.py",
        "exit-code-of-nothing",
        "python3 server.py",
        "git diff --stat",
    ]


def test_as_printed_in_a_fresh_clone(book, capsys):
    """One command fails here, and is shown; variables stay, and servers get Ctrl-C."""
    assert walk.run(book, []) == 1
    printed = capsys.readouterr().out
    assert "exit code 127 exit-code-of-nothing" in printed
    assert "command not found" in printed
    made = json.loads((book / "appendix" / "walk.json").read_text())["0_first/README.md"]
    assert [row["command"] for row in made["commands"]] == walk.commands(README)[1:]
    assert [row["code"] for row in made["commands"]] == [0, 0, 0, 0, 0, 127, 0, 0]
    assert not (book / "0_first" / "greeting.txt").exists()


def test_the_rest(book, commit, capsys):
    """What is changed or has failed is run again, with the variables that it may need."""
    walk.run(book, [])
    capsys.readouterr()
    text = README.replace("exit-code-of-nothing", 'test "$NAME" = reader')
    (book / "0_first" / "README.md").write_text(text)
    commit(book)
    assert walk.run(book, [], rest=True) == 0
    ran = re.findall(r"ok +(.*)", capsys.readouterr().out)
    assert ran == ["cd 0_first", "NAME=$(echo reader)", 'test "$NAME" = reader']
    made = json.loads((book / "appendix" / "walk.json").read_text())["0_first/README.md"]
    assert [row["command"] for row in made["commands"]] == walk.commands(text)[1:]
    assert {row["code"] for row in made["commands"]} == {0}
    assert walk.run(book, [], rest=True) == 0
    assert not capsys.readouterr().out


def test_a_command_that_does_not_end(book, monkeypatch):
    monkeypatch.setattr(terminal, "LIMIT", 0.5)
    todo = [walk.Step("0_first/README.md", "sleep 60"), walk.Step("0_first/README.md", "true")]
    with walk.fresh_clone(book) as clone:
        assert [made["code"] for made in walk.walk(clone, todo)] == [None]


# Its child has a session of its own, as torchrun's ranks have.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
print("child", child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_nothing_is_left_running(tmp_path, monkeypatch):
    """Neither by a server that ignores Ctrl-C nor by a command that takes too long."""
    monkeypatch.setattr(terminal, "PATIENCE", 0.2)
    monkeypatch.setattr(terminal, "LIMIT", 5.0)
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    log = tmp_path / "log.txt"
    background = terminal.Background("python3 stubborn.py", tmp_path, log)
    assert background.wait_for("child")
    assert background.stop() is None
    shell = terminal.Terminal(log)
    assert shell.run("python3 stubborn.py", tmp_path) is None
    shell.close()
    children = [int(number) for number in re.findall(r"child (\d+)", log.read_text())]
    assert len(children) == 2
    for child in children:
        assert not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"


def test_a_server_that_ends_by_itself(tmp_path):
    background = terminal.Background("bash -c 'exit 3'", tmp_path, tmp_path / "log.txt")
    assert not background.wait_for("ready")
    assert background.stop() == 3


def test_a_mark_without_a_command(book):
    place = book / "appendix" / "walk.yaml"
    place.write_text("0_first/README.md:\n  python3 gone.py: {not: gone}\n")
    with pytest.raises(ValueError, match=r"not in the READMEs any more: .*python3 gone\.py"):
        walk.steps(book)


def test_every_command_is_run_or_marked():
    """Of this project; a test that stands in for a command is there."""
    steps = walk.steps(ROOT)
    assert len(steps) > 100
    for step in steps:
        assert "why" in step.mark or "instead" not in step.mark, step
        assert "test" not in step.mark or (ROOT / step.mark["test"]).exists(), step


def test_record_of_the_walk_is_of_these_commands():
    """A command that is new or changed has to be walked again: appendix/walk.py --rest."""
    record = json.loads((ROOT / "appendix" / "walk.json").read_text())
    steps = [step for step in walk.steps(ROOT) if step.is_run]
    assert set(record) == {step.readme for step in steps}
    for readme, made in record.items():
        mine = [step for step in steps if step.readme == readme]
        assert [row["command"] for row in made["commands"]] == [step.command for step in mine]
        assert [row["code"] for row in made["commands"]] == [
            step.mark.get("code", 0) for step in mine
        ]
