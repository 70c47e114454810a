"""Helpers of the container's tests: read a Dockerfile, and do what it says without an engine.

Only what this chapter's Dockerfile uses is understood; anything else raises.
"""

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

PLACES = ("/opt/venv", "/build", "/app")  # the image's folders that the steps name
KNOWN = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "FROM", "RUN", "USER", "WORKDIR"}


@dataclass
class Stage:
    """One FROM, and the instructions after it."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [text for name, text in self.steps if name == instruction]


def read(text: str) -> tuple[dict[str, str], list[Stage]]:
    """The arguments in front of the first stage with their defaults, and the stages."""
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, rest = line.partition(" ")
        assert name in KNOWN, f"the tests do not know {name}"
        if name == "FROM":
            base, as_, own = rest.split()
            assert as_ == "AS"
            stages.append(Stage(own, base))
        elif not stages:
            key, _, value = rest.partition("=")
            arguments[key] = value
        else:
            stages[-1].steps.append((name, rest))
    return arguments, stages


def needed(stages: list[Stage], arguments: dict[str, str]) -> list[Stage]:
    """The stages that the last one is built on or copies from, in their order."""
    by_name = {stage.name: stage for stage in stages}
    todo, found = [stages[-1].name], set()
    while todo:
        stage = by_name[todo.pop()]
        found.add(stage.name)
        sources = re.findall(r"--from=(\S+)", " ".join(stage.all("COPY")))
        base = re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], stage.base)
        todo += [name for name in [base, *sources] if name in by_name]
    return [stage for stage in stages if stage.name in found]


def context(folder: Path, ignore: str) -> list[Path]:
    """The files that a build gets to see, relative to ``folder``; see Docker's documentation.

    The last pattern that fits a file, or a folder above it, decides; ``!`` lets it in again.
    """
    patterns = [line for line in ignore.splitlines() if line and not line.startswith("#")]
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return sorted(path for path in files if lets_in(path, patterns))


def lets_in(path: Path, patterns: list[str]) -> bool:
    inside = True
    for pattern in patterns:
        expression = re.escape(pattern.removeprefix("!"))
        expression = expression.replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*")
        if re.match(rf"{expression}(/|$)", path.as_posix()):
            inside = pattern.startswith("!")
    return inside


class Build:
    """Executes stages in a folder that stands for the image's file system.

    Args:
        root: the folder; what the steps call /app is ``root/app``.
        source: the build's context, after .dockerignore.
        stand_ins: folder of programs that come before the real ones, such as useradd.
    """

    def __init__(self, root: Path, source: Path, stand_ins: Path) -> None:
        self.root, self.source = root, source
        path = f"{stand_ins}:{os.environ['PATH']}"
        self.outside = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_"))}
        self.outside |= {"PATH": path, "HOME": str(root)}

    def here(self, text: str) -> str:
        """A text with the image's folders as folders of ``root``."""
        return re.sub(rf"(?<![\w.])({'|'.join(PLACES)})\b", rf"{self.root}\1", text)

    def run(self, stages: list[Stage]) -> None:
        """Execute the stages; what the last one leaves is in ``folder`` and ``environment``."""
        for stage in stages:
            if stage.base == "${PYTHON}":  # it begins anew
                self.environment, self.folder = dict(self.outside), self.root
            for name, text in stage.steps:
                self.step(name, self.here(text))

    def step(self, name: str, text: str) -> None:
        if name == "ENV":
            for word in shlex.split(text):
                key, _, value = word.partition("=")
                self.environment[key] = value.replace("$PATH", self.environment["PATH"])
        elif name == "WORKDIR":
            self.folder = Path(text)
            self.folder.mkdir(parents=True, exist_ok=True)
        elif name == "COPY":
            self.copy(*text.split())
        elif name == "RUN":
            subprocess.run(["sh", "-c", text], cwd=self.folder, env=self.environment, check=True)

    def copy(self, *words: str) -> None:
        if words[0].startswith("--from="):
            assert words[1] == words[2]  # stages share the folder, so it is there already
            assert Path(words[1]).is_dir()
            return
        for word in words[:-1]:
            if (self.source / word).is_dir():
                shutil.copytree(self.source / word, self.folder, dirs_exist_ok=True)
            else:
                shutil.copy(self.source / word, self.folder)
