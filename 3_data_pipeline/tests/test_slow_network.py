"""The slow network as a command, between other programs and a server."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from dotenv import dotenv_values

from tests.test_s3_proxy import DATA, files, is_closed
from tests.test_s3_proxy import server as server  # a fixture

CHAPTER = Path(__file__).resolve().parents[1]
BAD_INPUT = {
    "--delay 30": "--delay: '30' is not a number with a unit, us or ms or s",
    "--bandwidth 0MB/s": "--bandwidth: nothing passes",
    "--bandwidth -1MB/s": "--bandwidth: expected one argument",
    "--endpoint https://127.0.0.1": "'https://127.0.0.1' is not of the form http://host:port",
    "--endpoint http://127.0.0.1:1": "--endpoint: nothing answers at http://127.0.0.1:1",
}


def start(*arguments: str) -> tuple[subprocess.Popen, list[str]]:
    """slow_network.py as a process of its own, and what it prints until it is ready or ends."""
    words = [sys.executable, "slow_network.py", *arguments]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(words, cwd=CHAPTER, **output)
    lines = [process.stdout.readline()]
    while lines[-1] and not lines[-1].startswith("Ctrl-C"):
        lines.append(process.stdout.readline())
    return process, lines


@pytest.mark.slow
def test_command_leaves_nothing_behind(tmp_path):
    """With a server of its own; a shell runs the lines that it prints."""
    process, lines = start("--delay", "1ms", "--bandwidth", "50.5MB/s", "--folder", str(tmp_path))
    script = "".join(line for line in lines if line.startswith("  ")) + "env"
    printed = subprocess.check_output(["sh", "-c", script], cwd=CHAPTER, text=True)
    variables = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)
    own = dotenv_values(tmp_path / "server.env")["AWS_ENDPOINT_URL"]
    assert variables["AWS_ENDPOINT_URL"] != own
    files(variables).pipe_file("embedded/data", DATA)
    process.send_signal(signal.SIGINT)
    assert "1 requests (1 PUT), 0.1 MB" in process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert is_closed(variables["AWS_ENDPOINT_URL"])
    assert is_closed(own)


def test_command_in_front_of_another_server(server):
    process, lines = start("--endpoint", server["AWS_ENDPOINT_URL"])
    assert not any("server.env" in line for line in lines)
    process.terminate()
    assert "0 requests" in process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert files(server).cat_file("embedded/data") == DATA


@pytest.mark.parametrize(("arguments", "message"), BAD_INPUT.items())
def test_command_says_what_is_wrong(arguments, message):
    process, lines = start(*arguments.split())
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert len(lines) == 2  # the second one is the end
    assert lines[0].startswith("error: ")
    assert message in lines[0]
