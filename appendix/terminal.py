"""Run commands as in a terminal: one after the other in one shell, or beside it until Ctrl-C."""

import os
import signal
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

LIMIT = 1800.0  # seconds that a command may take
PATIENCE = 60.0  # seconds from Ctrl-C to the end of a command
# A reader has none of these; some lead out of a copy of this project, into its environment, its
# data or a bucket.
NOT_A_READERS = {
    *("VIRTUAL_ENV", "UV_NO_SYNC", "UV_PROJECT_ENVIRONMENT", "PYTHONPATH"),
    *("EMBEDDED_S3_FOLDER", "EMBEDDED_S3_ENDPOINT", "CLOUD_STORAGE_PATH"),
    *("AWS_ENDPOINT_URL", "AWS_PROFILE", "DASK_SCHEDULER_ADDRESS"),
}


def readers_environment() -> dict[str, str]:
    """Variables for a command that is run as a reader would run it."""
    return {name: value for name, value in os.environ.items() if name not in NOT_A_READERS}


def end(processes: Iterable[psutil.Process], patience: float = 10.0) -> None:
    """SIGTERM to each; to those that do not end in time, SIGKILL."""
    alive = list(processes)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(alive, timeout=patience)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def family(number: int) -> list[psutil.Process]:
    """All that a process has started; torchrun's ranks have groups and sessions of their own."""
    try:
        return psutil.Process(number).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


class Terminal:
    """A bash in which one command runs after the other, so that variables stay."""

    def __init__(self, log: Path) -> None:
        self.log = log.open("ab")
        self.bash = subprocess.Popen(
            ["bash"],
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=readers_environment(),
        )

    def run(self, command: str, folder: Path) -> int | None:
        """The exit code; None if the command does not end in time."""
        answer = Path(self.log.name).with_suffix(".code")
        answer.unlink(missing_ok=True)
        assert self.bash.stdin
        script = f"cd '{folder}'\n{{ {command}\n}} </dev/null\necho $? >'{answer}.new'\n"
        script += f"mv '{answer}.new' '{answer}'\n"
        self.bash.stdin.write(script.encode())
        self.bash.stdin.flush()
        end = time.monotonic() + LIMIT
        while not answer.exists():
            if time.monotonic() > end or self.bash.poll() is not None:
                return None
            time.sleep(0.1)
        return int(answer.read_text())

    def close(self) -> None:
        """End the bash and whatever still runs in it."""
        started = family(self.bash.pid)
        self.bash.kill()  # first, so that it starts nothing more
        end(started)
        self.bash.communicate()
        self.log.close()


class Background:
    """A command that runs until Ctrl-C, such as a server."""

    def __init__(self, command: str, folder: Path, log: Path) -> None:
        self.start = log.stat().st_size if log.exists() else 0
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Without a buffer a server's first lines are seen at once.
                env=readers_environment() | {"PYTHONUNBUFFERED": "1"},
            )

    def wait_for(self, text: str) -> bool:
        """Whether it prints ``text``."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end and self.process.poll() is None:
            if text in self.log.read_bytes()[self.start :].decode(errors="replace"):
                return True
            time.sleep(0.1)
        return False

    def stop(self) -> int | None:
        """Ctrl-C; the exit code, which is 0 for a program that takes this for its normal end.

        It is None for a program that does not end, and then is killed.
        """
        if (code := self.process.poll()) is not None:
            return code
        started = family(self.process.pid)
        os.killpg(self.process.pid, signal.SIGINT)
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            end(started)
            return None
        return 0 if code in (0, 130, -signal.SIGINT) else code
