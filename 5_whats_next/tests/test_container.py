"""The container: its rules, what gets into it, and its steps in a fresh environment.

There is no engine here. The steps are read from the Dockerfile and executed in a folder.
"""

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from src.config import CHAPTER

from tests.dockerfile_steps import Build, context, needed, read
from tests.runs import TINY

TEXT = (CHAPTER / "Dockerfile").read_text()
IGNORE = (CHAPTER / ".dockerignore").read_text()
SECRET = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|CREDENTIAL", re.IGNORECASE)


def test_the_linter_finds_nothing():
    beside = Path(sys.executable).with_name("hadolint")
    program = str(beside) if beside.is_file() else shutil.which("hadolint")
    if program is None:
        pytest.skip("there is no hadolint for this system")
    found = subprocess.run(
        [program, "--no-color", str(CHAPTER / "Dockerfile")], capture_output=True, text=True
    )
    assert (found.returncode, found.stdout) == (0, "")


def test_rules():
    """A base with a version, several stages, no root, hashes, nothing secret."""
    arguments, stages = read(TEXT)
    names = {stage.name for stage in stages}
    outside = {stage.base for stage in stages if stage.base not in names}
    assert outside == {"${PYTHON}", "packages-${DEVICE}"}
    assert re.fullmatch(r"python:3\.\d+-slim-\w+", arguments["PYTHON"])
    last = stages[-1]
    assert last.base == "${PYTHON}"  # so nothing of the other stages is in it but what is copied
    assert int(last.all("USER")[-1]) > 0
    assert last.steps[-2][0] == "ENTRYPOINT"
    assert last.steps[-1][0] == "CMD"
    for stage in stages:
        settings = [*stage.all("ENV"), *stage.all("ARG")]
        assert not any(SECRET.search(text) for text in [*settings, *arguments])
        for command in stage.all("RUN"):
            if "pip install" in command and "TORCH_INDEX" not in command:
                assert "--require-hashes --no-deps" in command
        assert not re.search("apt-get|curl|ADD|https?:", " ".join(map(str, stage.steps)))


def test_each_device_has_its_packages():
    arguments, stages = read(TEXT)
    for device in ("gpu", "cpu"):
        names = [stage.name for stage in needed(stages, arguments | {"DEVICE": device})]
        assert names == ["environment", f"packages-{device}", "packages", "run"]


def test_only_what_runs_gets_in(tmp_path):
    """Secrets, results, tests and caches stay outside, also those that nobody thought of."""
    inside = ["study.py", "study.yaml", "src/a.py", "src/model/b.py", "config/c.yaml"]
    inside += ["requirements.txt", "requirements-cpu.txt"]
    outside = [".env", ".env.local", "src/.env", "config/.env.production", "key.pem"]
    outside += ["output/run_1/checkpoints/last.ckpt", "results/x.json", "tests/test_a.py"]
    outside += ["src/__pycache__/a.cpython-311.pyc", "conftest.py", "Dockerfile", "README.md"]
    for name in inside + outside:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert context(tmp_path, IGNORE) == sorted(map(Path, inside))


def test_requirements_have_hashes_and_no_address():
    for name in ("requirements.txt", "requirements-cpu.txt"):
        text = (CHAPTER / name).read_text().replace("\\\n", "")
        entries = text.splitlines()
        assert all(re.match(r"[\w.-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", one) for one in entries)
        assert not re.search("://|--index|--find-links|@ ", text)
        cuda = [one for one in entries if re.match("torch=|nvidia-|triton=|cuda-", one)]
        assert bool(cuda) == (name == "requirements.txt")
        assert not re.search(r"^(pytest|ruff|mypy)==", text, flags=re.MULTILINE)


@pytest.fixture
def source(tmp_path):
    """The context of a build, with the hashes of two small packages only."""
    folder = tmp_path / "context"
    for path in context(CHAPTER, IGNORE):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHAPTER / path, folder / path)
    entries = re.split(r"\n(?=[a-z0-9])", (folder / "requirements.txt").read_text())
    small = [entry for entry in entries if re.match("einops==|tqdm==", entry)]
    assert len(small) == 2
    (folder / "requirements.txt").write_text("\n".join(small) + "\n")
    return folder


@pytest.mark.slow
def test_steps_in_a_fresh_environment(tmp_path, source):
    """Install as the Dockerfile does, then train with its command; code and packages stay as
    they are.

    Two packages are downloaded and checked; PyTorch, CUDA and the others, 6 GB, come from the
    environment of the tests.
    """
    stand_ins = tmp_path / "bin"
    stand_ins.mkdir()
    for name in ("useradd", "chown"):  # no test adds users to the machine
        (stand_ins / name).write_text("#!/bin/sh\n")
        (stand_ins / name).chmod(0o755)
    (stand_ins / "python").symlink_to(sys.base_prefix + "/bin/python3")
    root = tmp_path / "image"
    root.mkdir()
    build = Build(root, source, stand_ins)
    arguments, stages = read(TEXT)
    first, *others = needed(stages, arguments)
    build.run([first])
    list_of_packages = source / "requirements.txt"
    locked = list_of_packages.read_text()
    list_of_packages.write_text(re.sub("sha256:[0-9a-f]{4}", "sha256:0000", locked))
    with pytest.raises(subprocess.CalledProcessError, match="--require-hashes"):
        build.run(others)  # files that are not the locked ones end the build
    list_of_packages.write_text(locked)
    build.run(others)
    last = others[-1]

    (packages,) = (root / "opt/venv/lib").glob("python*/site-packages")
    assert {"einops", "tqdm"} <= {path.name for path in packages.iterdir()}
    assert not (packages / "torch").exists()
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))

    before = files_of(root)
    (program,), (script,) = (
        re.findall(r'"([^"]+)"', last.all(name)[-1]) for name in ("ENTRYPOINT", "CMD")
    )
    environment = build.environment | {"HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    environment["CLOUD_STORAGE_PATH"] = "none"  # the server is not among the packages
    command = [shutil.which(program, path=environment["PATH"]) or "", script, *TINY]
    ended = subprocess.run(
        command, cwd=build.folder, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    run = root / "app/output/run_1"
    assert (run / "checkpoints/last.ckpt").is_file()
    assert (run / "summary.json").is_file()
    changed = files_of(root) - before
    assert all(path.is_relative_to(root / "app/output") for path in changed)


def files_of(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}
