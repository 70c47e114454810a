"""The fix: workers that do not inherit their parent's threads read what it has read before."""

import os
import re
import signal
import subprocess
import sys
import time
import uuid

import fork_hang
import psutil
import pytest
from src.config import CHAPTER
from src.data.s3_server import connect, disconnect
from src.errors import UserError

PATIENCE = 120.0  # seconds; a new Python takes long to start where others compute
MARK = "FORK_HANG_TEST"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The store of the demonstration, on a server of this test's own."""
    folder = tmp_path_factory.mktemp("s3")
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in connect(folder).items():
            monkeypatch.setenv(name, value)
        fork_hang.write_store()
        yield
    disconnect(folder)


@pytest.fixture
def marked(monkeypatch) -> str:
    """A value in the environment of all processes that the test starts from here on."""
    value = uuid.uuid4().hex
    monkeypatch.setenv(MARK, value)
    return value


def processes(mark: str) -> list[psutil.Process]:
    """What runs with that mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:  # it has ended by now, or belongs to somebody else
            continue
    return found


def run_main(monkeypatch, *arguments: str) -> None:
    """main() in this process, without a server."""
    monkeypatch.setattr(fork_hang, "connect", dict)
    monkeypatch.setattr(fork_hang, "write_store", lambda: None)
    monkeypatch.setattr(sys, "argv", ["fork_hang.py", *arguments])
    monkeypatch.setenv("AWS_SESSION_TOKEN", "")  # main() sets it: put it back afterwards
    assert fork_hang.main() == 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_new_pythons_read_after_their_parent(store, marked, tmp_path, method):
    """The regression test for the fix; xarray reads through dask, zarr and s3fs."""
    seconds, outcome = fork_hang.run(("xarray", "has read", method), PATIENCE, str(tmp_path))
    assert outcome == "ok"
    assert re.fullmatch(r"\d+\.\d s", seconds)
    assert not processes(marked)


@pytest.mark.slow
def test_forked_workers_hang_after_a_read_and_are_ended(store, marked, tmp_path):
    start = time.monotonic()
    answer = fork_hang.run(("xarray", "has read", "fork"), 4.0, str(tmp_path))
    assert time.monotonic() - start < PATIENCE
    assert answer == ("-", "hangs")
    assert not processes(marked)


@pytest.mark.slow
def test_interrupt_leaves_no_process(store, marked):
    """Ctrl-C at the worst moment: the script does not know yet what it has just started."""
    code = "import fork_hang as f; f.connect = dict\nwith f.one_line_errors(): f.sys.exit(f.main())"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=CHAPTER, stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout
        while "first batch" not in script.stdout.readline():
            assert script.poll() is None
        while len(processes(marked)) < 2:
            time.sleep(0.01)
        script.send_signal(signal.SIGINT)
        assert script.wait(PATIENCE) == 128 + signal.SIGINT
    deadline = time.monotonic() + PATIENCE
    while processes(marked) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not processes(marked)


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_interrupt_ends_the_case(marked, monkeypatch, number, error):
    """It comes while main() waits for the case."""

    def interrupt(*_):
        assert len(processes(marked)) == 1
        os.kill(os.getpid(), number)
        time.sleep(10)

    monkeypatch.setattr(fork_hang, "next_line", interrupt)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(error):
        run_main(monkeypatch)
    signal.signal(signal.SIGTERM, before)
    assert not processes(marked)


def test_end_takes_a_group_that_refuses(marked, monkeypatch):
    """A child that ignores the first signal, of a process that does not wait for it."""
    monkeypatch.setattr(fork_hang, "STOP_TIMEOUT", 0.2)
    child = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    process = subprocess.Popen(
        ["bash", "-c", f"({child}) &"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout
    process.stdout.readline()
    assert processes(marked)
    fork_hang.end(process)
    assert not processes(marked)


@pytest.mark.parametrize(("arguments", "count"), [([], 15), (["--all"], 27)])
def test_table(monkeypatch, capsys, arguments, count):
    monkeypatch.setattr(fork_hang, "run", lambda case, *_: ("1.0 s", f"ok {case[0]}"))
    monkeypatch.setattr(fork_hang.signal, "signal", lambda *_: None)
    run_main(monkeypatch, *arguments)
    versions, _, header, *rows = capsys.readouterr().out.splitlines()
    assert re.match(r"Python 3\.\d+\.\d+, torch \d.*, s3fs \d.*, dask \d", versions)
    width = header.index("outcome")
    cells = [[*re.split(r"\s{2,}", row[:width].strip()), row[width:]] for row in rows]
    assert [tuple(row[:3]) for row in cells] == list(fork_hang.grid("--all" in arguments))
    assert len(rows) == count
    assert all(row[3:] == ["1.0 s", f"ok {row[0]}"] for row in cells)


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf"])
def test_timeout_has_to_be_one(monkeypatch, timeout):
    with pytest.raises(UserError, match=r"^--timeout: .* allowed: above 0, up to 3600 s"):
        run_main(monkeypatch, f"--timeout={timeout}")


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("Traceback:\n  File\nRuntimeError: This class is not\n", "This class is not"),
        (
            "E: Task <Task <x> y> got Future <z> attached to another",
            "Task <...> attached to another",
        ),
        ("", "ValueError()"),
        ("word " * 20, " ".join(["word"] * 9) + " ..."),
    ],
)
def test_one_line(message, line):
    assert fork_hang.one_line(ValueError(*[message] if message else [])) == line


DASK = """
import os, signal
import dask.array as da
field = da.ones((4, 8), chunks=(1, 8)) + 1
field[:1].compute()
for chunks in (1, 2):
    if (pid := os.fork()) == 0:
        signal.alarm(3)
        field[:chunks].compute()
        os._exit(0)
    print(os.waitpid(pid, 0)[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(os.cpu_count() == 1, reason="dask's pool has a thread for each processor")
def test_pool_recovers_if_it_has_too_few_threads():
    """After a read of one chunk, as the demonstration says: one chunk hangs, two are read."""
    command = [sys.executable, "-W", "ignore", "-c", DASK]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.split() == [str(int(signal.SIGALRM)), "0"]
