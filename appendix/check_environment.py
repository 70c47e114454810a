"""Is this machine ready for the book? One line for each requirement: OK, or what to do.

  uv run python appendix/check_environment.py
  python3 appendix/check_environment.py          if the packages cannot be installed

Exit code 1 if something has to be done first.
"""

import importlib.metadata
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def missing_packages() -> str:
    """Names of pyproject.toml's dependencies that are not installed; uv.lock has the versions."""
    # Not with tomllib: Python 3.10 has none, and shall be told that it is too old.
    text = (ROOT / "pyproject.toml").read_text().partition("dependencies = [")[2]
    names = re.findall(r'^    "([\w-]+)', text.partition("\n]")[0], re.MULTILINE)
    installed = {
        dist.metadata["Name"].lower() for dist in importlib.metadata.distributions()
    }
    return ", ".join(name for name in names if name not in installed)


def gpu() -> str:
    """What PyTorch sees."""
    import torch  # only where the packages are installed

    sys.path.insert(0, str(ROOT / "0_setup"))
    from src.run.config import unusable_card

    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    if torch.backends.mps.is_available():
        return "Apple GPU: only with --trainer.accelerator mps, untested"
    return f"training uses the CPU{unusable_card() or '; no GPU was found'}"


def listens() -> bool:
    """Ranks and the S3 server talk through ports of 127.0.0.1."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError:
        return False
    return True


def s3_server() -> bool:
    """Whether the server starts that chapters 2 to 5 need."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH')}"
    try:
        command = [shutil.which("weed", path=path) or "weed", "version"]
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


def main() -> int:
    """Print a line for each check. Returns 1 if something has to be done."""
    missing = missing_packages()
    disk = shutil.disk_usage(ROOT).free / 1e9
    compiler = next(filter(shutil.which, ("g++", "clang++", "c++")), "none found")
    checks = [
        (
            "Python",
            sys.version_info >= (3, 11),
            sys.version.split()[0],
            "uv python install 3.11",
        ),
        (
            "packages",
            not missing,
            f"missing: {missing or 'none'}",
            "uv sync; for a CPU alone the lines of README.md, Start",
        ),
        (
            "disk",
            disk > 3,
            f"{disk:.1f} GB free",
            "make room: 3 GB for stores and runs, 26 for the cubes of 20 GB",
        ),
        (
            "127.0.0.1",
            listens(),
            "servers and ranks listen there",
            "a sandbox or firewall forbids",
        ),
        (
            "S3 server",
            s3_server(),
            "SeaweedFS (weed)",
            "uv sync, as above; if it is there, `uv run weed version` says what is wrong",
        ),
        ("compiler", True, f"{compiler} (without one: model.compile: false)", ""),
        ("GPU", True, "unknown" if missing else gpu(), ""),
    ]
    for name, ok, state, remedy in checks:
        print(
            f"{'OK' if ok else 'not ok':8}{name:11}{state}{'' if ok else ' -> ' + remedy}"
        )
    return not all(check[1] for check in checks)


if __name__ == "__main__":
    sys.exit(main())
