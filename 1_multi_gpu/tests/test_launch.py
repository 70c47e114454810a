"""The launcher of ranks, with programs that need no second: they fail, hang, stop."""

import signal
import socket
import sys

import pytest
from torch.distributed import TCPStore

from src.run import launch
from tests.runs import finish, start

PROGRAM = r"""
import os, signal, sys, time
from src.run import launch

launch.SECONDS_FOR_OTHERS = 1
if not launch.has_rank():
    sys.exit(launch.launch(2))
if os.environ["LOCAL_RANK"] == "0":
    RANK_0
else:
    # A rank that waits in a collective notices no signal.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
os.write(1, b"started\n")
time.sleep(1000)
"""
FAILURES = {"sys.exit(3)": 3, "os.kill(os.getpid(), 9)": 137, "sys.exit(143)": 143}
OWN_CODE = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))"


@pytest.mark.parametrize("failure", FAILURES)
def test_a_rank_that_fails_ends_the_others(tmp_path, failure):
    """Broken by: no deadline in wait_for_all, no kill in launch (it hangs)."""
    process = start(tmp_path, command=["-c", PROGRAM.replace("RANK_0", failure)])
    output = finish(process, FAILURES[failure])
    assert ("rank 0 failed first" in output) == (failure != "sys.exit(143)")


def test_all_ranks_end_well(tmp_path):
    """Broken by: no return before the first signal or failure (it hangs)."""
    program = PROGRAM.replace("RANK_0", "pass").replace("time.sleep(1000)", "")
    finish(start(tmp_path, command=["-c", program]))


@pytest.mark.parametrize(
    ("rank_0", "number", "code"),
    [
        ("pass", signal.SIGINT, 130),
        ("pass", signal.SIGTERM, 143),
        (OWN_CODE, signal.SIGTERM, 4),
    ],
)
def test_a_signal_is_handed_on(tmp_path, rank_0, number, code):
    """A second one kills those that hang; chapter 5 has a code of its own, 4, for rank 0.

    Broken by: no end_softly in wait_for_all; 128 + stop.number in place of rank 0's own code.
    """
    process = start(tmp_path, command=["-c", PROGRAM.replace("RANK_0", rank_0)])
    assert [process.stdout.readline() for _ in range(2)] == ["started\n"] * 2
    for _ in range(2):
        process.send_signal(number)
    finish(process, code)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_the_port_is_kept_until_the_ranks_meet():
    """From other programs, and not from rank 0. Broken by: create_server; no REUSEADDR."""
    with launch.reserved_port() as port:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        TCPStore("127.0.0.1", port, 1, is_master=True)
