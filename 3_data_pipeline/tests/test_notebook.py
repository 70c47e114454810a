"""The notebook runs from its first to its last cell, and what is committed has no outputs."""

import json
import re
import sys

import nbformat
import pytest
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec
from nbclient import NotebookClient
from src.config import CHAPTER
from src.errors import UserError

NOTEBOOK = CHAPTER / "plot_benchmark_runs.ipynb"


class OwnKernel(AsyncKernelManager):
    """A kernel of this environment's Python, whatever is installed under the name python3."""

    @property
    def kernel_spec(self) -> KernelSpec:
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="this Python", language="python")


def execute(folder, monkeypatch, log, grid="nothing.jsonl") -> tuple[nbformat.NotebookNode, list]:
    """The executed notebook, and the pictures that it has saved; the kernel has ended."""
    images = folder / "images"
    for name, value in {"LOG": log, "GRID": grid, "IMGS": images}.items():
        monkeypatch.setenv(f"BENCHMARK_{name}", str(value))
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
    monkeypatch.delenv("MPLBACKEND", raising=False)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(CHAPTER)}}
    client = NotebookClient(
        notebook, kernel_manager_class=OwnKernel, resources=resources, timeout=60
    )
    manager = client.create_kernel_manager()
    try:
        client.execute()
    finally:
        assert manager.ip == "127.0.0.1"
        assert not manager.has_kernel
    return notebook, sorted(path.name for path in images.iterdir())


def run(name: str, repeat: int, speed: float, **settings) -> dict:
    return {
        "name": name,
        "repeat": repeat,
        "machine": {"processor": "a made-up one", "date": str(repeat), "torch": "9.9"},
        "configuration": settings | {"dataset_args": {"dask_threads": settings["threads"]}},
        "waits": [0.3, 0.1],
        "steps": [0.1, 0.1],
        "samples_per_second": speed + repeat,
        "busy": 1 / 3,
        "peak_memory_mb": 500.0,
    }


def texts(notebook: nbformat.NotebookNode) -> str:
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    return "".join(out["text"] for out in outputs if out.output_type == "stream")


def pictures(notebook: nbformat.NotebookNode) -> int:
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    return sum("image/png" in out.get("data", {}) for out in outputs)


@pytest.mark.slow
def test_made_up_log_with_a_grid(tmp_path, monkeypatch):
    log = tmp_path / "made_up.jsonl"
    sizes = [(workers, threads) for workers in (0, 2) for threads in (1, 4)]
    runs = [
        run(f"{w} workers, {t} threads", n, 10.0 * (w + t), num_workers=w, threads=t)
        for w, t in sizes
        for n in range(2)
    ]
    log.write_text("\n".join(map(json.dumps, runs)))
    notebook, made = execute(tmp_path, monkeypatch, log, grid=log)
    assert made == [f"made_up-{kind}.png" for kind in ("bars", "busy", "heat_map", "timeline")]
    assert pictures(notebook) == 4
    said = texts(notebook)
    assert "4 configurations, 8 runs" in said
    assert re.search(r"processor +a made-up one\n", said)
    assert "0 workers, 1 threads: dask_threads 1, num_workers 0, threads 1\n" in said


@pytest.mark.slow
def test_committed_log(tmp_path, monkeypatch):
    """The one that the first cell names; without a grid the notebook says how to make one."""
    notebook, made = execute(tmp_path, monkeypatch, "benchmark_logs/ladder_30ms.jsonl")
    assert made == [f"ladder_30ms-{kind}.png" for kind in ("bars", "busy", "timeline")]
    assert pictures(notebook) == 3
    assert "--file benchmark_configs/dask_workers.yaml" in texts(notebook)
    assert 'LOG", "benchmark_logs/ladder_30ms.jsonl"' in NOTEBOOK.read_text().replace('\\"', '"')


def test_broken_log_is_one_clear_error(tmp_path, monkeypatch):
    """The first cell says so; here without a kernel."""
    log = tmp_path / "broken.jsonl"
    log.write_text('{"name": "cut off", "repea')
    monkeypatch.setenv("BENCHMARK_LOG", str(log))
    first = next(c for c in nbformat.read(NOTEBOOK, as_version=4).cells if c.cell_type == "code")
    with pytest.raises(UserError) as caught:
        exec(first.source, {})
    assert str(caught.value) == f"log: {log} has no successful run; the benchmark makes one"


def test_committed_without_outputs():
    """No results, no counts, no place on somebody's disk: its diff shows what has been written."""
    content = NOTEBOOK.read_text()
    notebook = json.loads(content)
    nbformat.validate(notebook)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    for cell in notebook["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        assert not cell["metadata"]
    assert not re.search(r"/(home|Users|root|work|tmp)/", content)
    assert str(CHAPTER) not in content
