"""A machine inside this one: processes with a network of their own, which end with it."""

import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[2]
SPACES = ["--net", "--pid", "--mount", "--uts"]
TOOLS = ("unshare", "nsenter", "ip", "pkill", "sysctl")


def may_make_networks() -> bool:
    """Root may, but not in every container."""
    command = ["unshare", *SPACES, "--fork", "true"]
    return all(map(shutil.which, TOOLS)) and not subprocess.run(command).returncode


MAY_MAKE_NETWORKS = may_make_networks()
NEEDS_ROOT = pytest.mark.skipif(
    not MAY_MAKE_NETWORKS, reason="needs root, for networks"
)
SLURM = ("slurmctld", "slurmd", "munged", "sbatch")
NEEDS_SLURM = pytest.mark.skipif(
    not all(shutil.which(name, path="/usr/sbin:/usr/bin") for name in SLURM),
    reason="needs SLURM (CONTRIBUTING.md)",
)


class Machine:
    """Processes with a name and a network of their own, which all end with it.

    Files are those of this machine, as if on a shared disk. It has the loopback device and one
    network card.

    Args:
        name: its host name.
        address: that of its card, in a network of /24.
        hosts: more names for 127.0.0.1.
    """

    card = "card"

    def __init__(self, name: str, address: str, *hosts: str) -> None:
        self.address = address
        lines = "".join(rf"127.0.0.1 {host}\n" for host in ("localhost", name, *hosts))
        set_up = f"""set -e
        hostname {name}
        ip link set lo up
        ip link add card type veth peer name plug
        ip address add {address}/24 dev card
        ip link set card up
        ip link set plug up
        hosts=$(mktemp); printf '{lines}' >$hosts
        mount --bind $hosts /etc/hosts
        echo ready; read -r"""
        unshare = ["unshare", *SPACES, "--fork", "--kill-child", "--mount-proc"]
        self.process = subprocess.Popen(
            [*unshare, "bash", "-c", set_up],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout.readline() == b"ready\n"
        pid = self.process.pid
        (self.pid,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

    def connect(self, other: "Machine") -> None:
        """A cable from this machine's card to that of another one."""
        other.run("ip", "link", "delete", "card")
        move = ["ip", "link", "set", "plug", "name", "card", "netns", other.pid]
        # In this network, but with the process numbers outside, where the other one has a number.
        subprocess.run(["nsenter", "--net", f"--target={self.pid}", *move], check=True)
        other.run("ip", "address", "add", f"{other.address}/24", "dev", "card")
        other.run("ip", "link", "set", "card", "up")

    def command(self, *words: str, folder: Path = ROOT) -> list[str]:
        """A command that runs ``words`` on this machine, in a folder."""
        return ["nsenter", *SPACES, f"--target={self.pid}", f"--wd={folder}", *words]

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


class Loopback:
    """An address of the loopback device, where a Machine cannot be made."""

    card = "lo"

    def __init__(self, address: str) -> None:
        self.address = address

    def command(self, *words: str, folder: Path = ROOT) -> list[str]:
        """As Machine."""
        return ["env", f"--chdir={folder}", *words]


def copy_of(chapter: str, folder: Path) -> Path:
    """The chapter, for trainings that write into its folder."""
    ignored = shutil.ignore_patterns("output", "results", "__pycache__")
    return Path(shutil.copytree(ROOT / chapter, folder / chapter, ignore=ignored))


def losses(folder: Path) -> dict[int, float]:
    """The training loss of each step of a run."""
    path = folder / "metrics.csv"
    if not path.exists():
        return {}
    table = pd.read_csv(path, index_col="step")
    return dict(table.get("train_loss", pd.Series()).dropna())
