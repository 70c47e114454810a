"""Run commands as in a terminal: one after the other in one shell, or beside it until Ctrl-C."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

LIMIT = 1800.0  # seconds that a command may take
# The clone has an environment of its own; without a buffer a server's first lines are seen at once.
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "UV_NO_SYNC")
} | {"PYTHONUNBUFFERED": "1"}


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
            env=ENVIRONMENT,
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
        with suppress(ProcessLookupError):
            os.killpg(self.bash.pid, signal.SIGKILL)
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
                env=ENVIRONMENT,
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
        """Ctrl-C; the exit code, which is 0 for a program that takes this for its normal end."""
        try:
            os.killpg(self.process.pid, signal.SIGINT)
            code = self.process.wait(60)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            return None
        return 0 if code in (0, 130, -signal.SIGINT) else code
