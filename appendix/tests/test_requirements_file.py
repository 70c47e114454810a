"""The container's requirements belong to the lock."""

import requirements_file
from requirements_file import CUDA, blocks, container_files, stale

LOCK = """
[[package]]
name = "us"
source = { virtual = "." }
dependencies = [{ name = "torch" }, { name = "tqdm", extra = ["bar"] }]

[package.dev-dependencies]
dev = [{ name = "pytest" }]

[[package]]
name = "torch"
version = "2.0"
source = { registry = "index" }
dependencies = [{ name = "nvidia-nccl" }]

[[package]]
name = "nvidia-nccl"
version = "1.0"
source = { registry = "index" }

[[package]]
name = "tqdm"
version = "4.0"
source = { registry = "index" }

[package.optional-dependencies]
bar = [{ name = "colour" }]

[[package]]
name = "colour"
version = "1.0"
source = { registry = "index" }

[[package]]
name = "pytest"
version = "9.0"
source = { registry = "index" }
"""
ENTRIES = {
    "colour": "colour==1.0 \\\n    --hash=sha256:1\n",
    "nvidia-nccl": "nvidia-nccl==1.0 ; sys_platform == 'linux' \\\n    --hash=sha256:2\n",
    "pytest": "pytest==9.0 \\\n    --hash=sha256:3\n",
    "torch": "torch==2.0 \\\n    --hash=sha256:4 \\\n    --hash=sha256:5\n",
    "tqdm": "tqdm==4.0 ; python_version < '3.12' \\\n    --hash=sha256:6\n"
    "tqdm==4.1 ; python_version >= '3.12' \\\n    --hash=sha256:7\n",
}
ALL = "".join(ENTRIES.values())


def test_entries_are_whole():
    assert blocks(ALL) == ENTRIES


def test_without_the_tools_and_without_cuda():
    files = container_files(LOCK, ALL)
    wanted = ("colour", "nvidia-nccl", "torch", "tqdm")
    assert files["requirements.txt"] == "".join(ENTRIES[name] for name in wanted)
    assert files["requirements-cpu.txt"] == ENTRIES["colour"] + ENTRIES["tqdm"]


def test_what_comes_with_cuda():
    assert all(
        CUDA.match(name) for name in ("torch", "triton", "nvidia-cudnn-cu13", "cuda-toolkit")
    )
    assert not any(CUDA.match(name) for name in ("torchmetrics", "cftime", "tritonclient"))


def test_stale_files_are_named(tmp_path):
    files = container_files(LOCK, ALL)
    (tmp_path / "requirements.txt").write_text(files["requirements.txt"])
    (told,) = stale(tmp_path, files)
    assert told.startswith("requirements-cpu.txt does not belong to uv.lock")


def test_the_committed_ones_are_fresh():
    committed = map(requirements_file.committed, ("uv.lock", "requirements.txt"))
    assert stale(requirements_file.FOLDER, container_files(*committed)) == []
