"""A machine inside this one: processes with a network of their own, which end with it."""

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# As root only: a namespace of its own needs that, or a system that allows it to everybody.
NEEDS_ROOT = pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("unshare"),
    reason="needs root, for networks",
)


class Machine:
    """Processes with a loopback device, process numbers and mounts of their own.

    All of them end with it. Files are those of this machine.

    Args:
        hosts: names in its /etc/hosts, for 127.0.0.1.
    """

    def __init__(self, *hosts: str) -> None:
        names = ("localhost", socket.gethostname(), *hosts)
        lines = "".join(rf"127.0.0.1 {name}\n" for name in names)
        set_up = f"""set -e
        ip link set lo up
        ip link add cable type veth peer name plug
        ip address add 192.0.2.1/24 dev cable
        ip link set cable up
        ip link set plug up
        hosts=$(mktemp); printf '{lines}' >$hosts
        mount --bind $hosts /etc/hosts
        echo ready; read -r"""
        namespaces = ["--net", "--pid", "--mount", "--fork", "--kill-child"]
        self.process = subprocess.Popen(
            ["unshare", *namespaces, "--mount-proc", "bash", "-c", set_up],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout.readline() == b"ready\n"
        unshare = self.process.pid
        children = Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()
        self.pid = children[0]

    def command(self, *words: str, folder: Path = ROOT) -> list[str]:
        """A command that runs ``words`` on this machine, in a folder."""
        spaces = ["--net", "--pid", "--mount", f"--target={self.pid}"]
        return ["nsenter", *spaces, f"--wd={folder}", *words]

    def run(self, *words: str, folder: Path = ROOT, **options) -> str:
        """What a command prints, with its errors."""
        done = subprocess.run(
            self.command(*words, folder=folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            **options,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def close(self) -> None:
        """End all its processes."""
        self.process.kill()
        self.process.communicate()
