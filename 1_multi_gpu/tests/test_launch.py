"""The launcher of ranks, with programs that need no second: they start, fail, hang, stop."""

import signal
import subprocess
import sys

import pytest

from src.config import CHAPTER

PROGRAM = r"""
import os, signal, sys, time
from src import launch

launch.PATIENCE = 1
if not launch.has_rank():
    sys.exit(launch.launch(2))
if os.environ["LOCAL_RANK"] == "0":
    os.write(1, b"started\n")
    {rank_0}
else:
    # A rank that waits in a collective notices no signal.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.write(1, b"started\n")
    {rank_1}
"""
FAILURES = {"sys.exit(3)": 3, "os.kill(os.getpid(), 9)": 137, "sys.exit(143)": 143}


def start(rank_0: str, rank_1: str) -> subprocess.Popen:
    command = [sys.executable, "-c", PROGRAM.format(rank_0=rank_0, rank_1=rank_1)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=CHAPTER, start_new_session=True, **pipes)


@pytest.mark.parametrize("failure", FAILURES)
def test_a_rank_that_fails_ends_the_others(failure):
    """Broken by: no break after the deadline; no kill in launch (it hangs)."""
    process = start(failure, "time.sleep(1000)")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == FAILURES[failure]
    assert ("rank 0 failed first" in errors) == (failure != "sys.exit(143)")


def test_all_ranks_end_well():
    assert start("pass", "pass").wait(timeout=60) == 0


def test_rank_0_says_how_a_stopped_run_has_ended():
    """Chapter 5's ends with 4 where another machine has the run. Broken by: 128 + stop.number."""
    handler = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))"
    ending = f"{handler}; os.write(1, b'ready\\n'); time.sleep(1000)"
    process = start(ending, "time.sleep(1000)")
    lines = sorted(process.stdout.readline() for _ in range(3))
    assert lines == ["ready\n", "started\n", "started\n"]
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_handed_on(number):
    """Broken by: no terminate in wait_for_all. A second Ctrl-C kills those that hang."""
    process = start("time.sleep(1000)", "time.sleep(1000)")
    assert [process.stdout.readline() for _ in range(2)] == ["started\n"] * 2
    for _ in range(2):
        process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
