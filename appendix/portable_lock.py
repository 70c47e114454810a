"""Write the lock in a form that names no index and no download address.

  uv lock                                   resolve, with whatever index this machine uses
  uv run python appendix/portable_lock.py   rewrite uv.lock and requirements.txt for the commit
  uv run python appendix/portable_lock.py --check   say whether the committed files are portable

``uv lock`` writes the address of every file into ``uv.lock``, so a lock made behind a mirror sends
everybody to that mirror (https://github.com/astral-sh/uv/issues/6349). The portable form keeps each
package's name, version, dependencies and markers. ``uv sync`` takes those as preferences, resolves
to the same versions on any index, and completes the file in your working copy: this is why git
shows it as modified afterwards.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ADDRESS = re.compile(r"https?://|\bregistry = \"(?!index\")")
EXPORT = [
    "uv",
    "export",
    "--quiet",
    "--no-header",
    "--no-annotate",
    "--no-emit-project",
    "--frozen",
]


def portable(lock: str) -> str:
    """The portable form of the text of a ``uv.lock``."""
    lock = re.sub(r'registry = "[^"]*"', 'registry = "index"', lock)
    lock = re.sub(r"^sdist = .*\n", "", lock, flags=re.MULTILINE)
    lock = re.sub(r"^wheels = \[\n(?:.*\n)*?\]\n", "", lock, flags=re.MULTILINE)
    # Tables that repeat pyproject.toml or one machine's settings, up to the next table.
    return re.sub(
        r"^\[(package\.metadata[^\]]*|options[^\]]*)\]\n(?:(?!\[).*\n)*",
        "",
        lock,
        flags=re.MULTILINE,
    )


def problems(lock: str, requirements: str) -> list[str]:
    """What keeps the two files from being portable; nothing if they are."""
    found = []
    if lock != portable(lock):
        found.append(
            "uv.lock is as uv wrote it: run appendix/portable_lock.py before you commit it"
        )
    for name, text in (("uv.lock", lock), ("requirements.txt", requirements)):
        found += [
            f"{name}: an address: {line.strip()}"
            for line in text.splitlines()
            if ADDRESS.search(line)
        ]
    packages = tomllib.loads(lock)["package"]
    everyday = installed(packages)
    # All but this project itself, which comes from no index.
    packages = [package for package in packages if "registry" in package["source"]]
    locked = {f"{package['name']}=={package['version']}": package["name"] for package in packages}
    exported = set(re.findall(r"^[a-z0-9][^ ]*==[^ ;\n]*", requirements, flags=re.MULTILINE))
    unknown = sorted(exported - locked.keys())
    found += [f"requirements.txt: {line} is not in uv.lock" for line in unknown]
    lacking = sorted(line for line, name in locked.items() if name in everyday)
    return found + [f"requirements.txt: lacks {line}" for line in lacking if line not in exported]


def installed(packages: list[dict]) -> set[str]:
    """Names of what ``uv sync`` installs: the optional groups of pyproject.toml are left out."""
    by_name: dict[str, list[dict]] = {}
    for package in packages:
        by_name.setdefault(package["name"], []).append(package)
    (project,) = (package for package in packages if "registry" not in package["source"])
    groups = project.get("dev-dependencies", {})
    todo = [*project.get("dependencies", []), *groups.get("dev", [])]
    found: set[tuple[str, str]] = set()
    while todo:
        wanted = todo.pop()
        for extra in ("", *wanted.get("extra", [])):
            if (wanted["name"], extra) not in found:
                found.add((wanted["name"], extra))
                for package in by_name[wanted["name"]]:
                    more = package.get("optional-dependencies", {}) if extra else package
                    todo += more.get(extra or "dependencies", [])
    return {name for name, _ in found}


def committed(name: str) -> str:
    """The file as git has it staged or committed; ``uv sync`` changes the working copy."""
    return subprocess.run(
        ["git", "show", f":{name}"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def main() -> int:
    """Rewrite or check; the exit code is 1 if the check fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="check the committed files, write nothing"
    )
    if parser.parse_args().check:
        found = problems(committed("uv.lock"), committed("requirements.txt"))
        print("\n".join(found) or "uv.lock and requirements.txt are portable")
        return 1 if found else 0
    lock = ROOT / "uv.lock"
    # The hashes come from the complete lock, so the export goes first.
    exported = subprocess.run(EXPORT, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (ROOT / "requirements.txt").write_text(exported)
    lock.write_text(portable(lock.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
