"""Training from object storage: the same curve, no process left, no secret told."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from src.config import CHAPTER

from tests.cloud_server import server as server  # a fixture
from tests.cloud_stores import SMALL
from tests.lightning_runs import (
    OCEAN,
    SCRIPT,
    TWO,
    call_cli,
    call_lightning,
    curve,
    lightning_weights,
    on_two_ranks,
)
from tests.runs import call, rows, wait_for_step, weights
from tests.s3_processes import runs

# Fewer windows: each is read over the network, and 20 steps tell as much about bits as 76.
SHORT = [*OCEAN, "--data.dataset.train_stride=[6,2,40]"]
MEMORY = "--data.dataset=src.data.pytorch_dataset.OceanDataset"
CLOUD = "--data.dataset=src.data.usecase_cloud_dataset.CloudDataset"


@pytest.fixture(scope="module")
def in_memory(tmp_path_factory) -> Path:
    """A run of two epochs on the ocean in memory, as in chapter 1."""
    output = tmp_path_factory.mktemp("memory")
    with pytest.MonkeyPatch.context() as monkeypatch:
        arguments = [*SHORT, MEMORY, f"--trainer.output_dir={output}"]
        assert call_lightning(monkeypatch, *arguments) == 0
    return output / "run_1"


def assert_same_bits(folder: Path, reference: Path) -> None:
    assert rows(folder) == rows(reference)
    theirs = lightning_weights(reference)
    for key, tensor in lightning_weights(folder).items():
        assert tensor.equal(theirs[key])


@pytest.mark.slow(copies=True)
@pytest.mark.parametrize("reader", ["none", "threads"])
def test_memory_and_s3_give_the_same_bits(monkeypatch, tmp_path, in_memory, reader, capsys):
    """Losses, scores and weights, whoever reads the chunks."""
    reading = [CLOUD, f"--data.dataset.dask={reader}"]
    arguments = [*SHORT, *reading, f"--trainer.output_dir={tmp_path}"]
    assert call_lightning(monkeypatch, *arguments) == 0
    assert_same_bits(tmp_path / "run_1", in_memory)
    printed = capsys.readouterr().out
    assert "requests, 0 retries, " in printed


@pytest.mark.slow
def test_workers_give_the_same_bits(monkeypatch, tmp_path, in_memory):
    arguments = [*SHORT, "--data.num_workers=2", f"--trainer.output_dir={tmp_path}"]
    assert call_lightning(monkeypatch, *arguments) == 0
    assert_same_bits(tmp_path / "run_1", in_memory)


@pytest.mark.slow
def test_two_ranks_have_the_curve_of_memory(tmp_path, in_memory):
    """Both start together: one starts the server and builds the store, the other one joins."""
    on_two_ranks([("lightning", "", [*SHORT, *TWO, f"--trainer.output_dir={tmp_path}"])])
    ours, theirs = curve(tmp_path / "run_1"), curve(in_memory)
    assert len(ours) == len(theirs)
    assert (abs(ours - theirs) / theirs).max() < 1e-5


@pytest.mark.slow(copies=True)
def test_raw_pytorch_streams_too(monkeypatch, tmp_path, in_memory):
    """Chapter 0's script with the same configuration."""
    assert call(monkeypatch, *SHORT, f"--trainer.output_dir={tmp_path}") == 0
    theirs = lightning_weights(in_memory)
    assert all(w.equal(theirs[key]) for key, w in weights(tmp_path / "run_1").items())


@pytest.mark.slow
def test_command_line_streams(monkeypatch, tmp_path, in_memory, capsys):
    """LightningCLI with its own configuration file, and a resumed run."""
    settings = [word for word in SHORT if "picture_every" not in word and "wandb" not in word]
    output = f"--trainer.logger.init_args.output_dir={tmp_path}"
    assert call_cli(monkeypatch, "fit", *settings, output, "--trainer.max_steps=13") == 0
    last = tmp_path / "run_1" / "checkpoints" / "last.ckpt"
    arguments = [*settings, output, f"--ckpt_path={last}", "--trainer.max_steps=-1"]
    assert call_cli(monkeypatch, "fit", *arguments) == 0
    assert_same_bits(tmp_path / "run_1", in_memory)
    assert "requests, 0 retries, " in capsys.readouterr().out


ENDINGS = {  # what is sent, and to all processes of the job or to the training alone
    "Ctrl-C": (signal.SIGINT, "all"),
    "SLURM's end": (signal.SIGTERM, "all"),
    "out of memory": (signal.SIGKILL, "one"),
}


def running(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; one that nobody waits for may stay as a zombie."""
    return [process for process in processes if runs(process)]


def start_and_end(folder: Path, number: int, to: str) -> tuple[int, str, list[psutil.Process]]:
    """A run of its own, with a server of its own and workers, ended in the middle.

    Returns its exit code, what it has printed, and which of its processes were left.
    """
    settings = [*SHORT, "--trainer.max_epochs=200", "--data.num_workers=1"]
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *settings, f"--trainer.output_dir={folder}"],
        env=os.environ | {"EMBEDDED_S3_FOLDER": str(folder / "s3")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    family: list[psutil.Process] = []
    try:
        wait_for_step(process, folder / "run_1", 3)
        family = psutil.Process(process.pid).children(recursive=True)
        names = " ".join(word for member in family for word in member.cmdline())
        assert "weed" in names
        assert "forkserver" in names
        (os.killpg if to == "all" else os.kill)(process.pid, number)
        printed, _ = process.communicate(timeout=120)
        # Nobody can wait for the others after a kill: they notice it within seconds.
        _, left = psutil.wait_procs(running(family), timeout=60)
        return process.returncode, printed, running(left)
    finally:
        process.kill()
        for member in running(family):
            member.kill()


@pytest.fixture(scope="module")
def ends(tmp_path_factory) -> dict[str, tuple[Path, Future]]:
    """All of them at the same time: most of it is waiting for imports."""
    folders = {ending: tmp_path_factory.mktemp("ending") for ending in ENDINGS}
    with ThreadPoolExecutor(len(ENDINGS)) as pool:
        return {e: (f, pool.submit(start_and_end, f, *ENDINGS[e])) for e, f in folders.items()}


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_stays_behind(ends, ending):
    folder, done = ends[ending]
    code, printed, left = done.result()
    assert not left
    assert not (folder / "s3" / "server.env").exists()
    if ENDINGS[ending][0] == signal.SIGKILL:
        assert code == -signal.SIGKILL
    else:
        assert code == 128 + ENDINGS[ending][0], printed
        assert "continue with" in printed


@pytest.mark.slow
def test_no_secret_is_told(server, monkeypatch, tmp_path, capfd):
    """The key of a server that the environment names, and wandb's: in no output and no file."""
    monkeypatch.setenv("WANDB_API_KEY", "planted-secret" * 3)
    small = [f"--data.dataset.{name}={list(value)}" for name, value in SMALL.items()]
    place = ["--data.dataset.url=s3://bucket/small.zarr", "--model.patch_size=[3,2,3]"]
    settings = [*SHORT, *small, *place, "--trainer.max_epochs=1", "--trainer.wandb=offline"]
    assert call_lightning(monkeypatch, *settings, f"--trainer.output_dir={tmp_path}") == 0
    told = "".join(capfd.readouterr()).encode()
    assert b"requests, 0 retries" in told
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("wandb" in str(path) for path in files)
    assert {"last.ckpt", "config.yaml", "metrics.csv"} <= {path.name for path in files}
    for secret in ("planted-secret", server["AWS_SECRET_ACCESS_KEY"], server["AWS_ACCESS_KEY_ID"]):
        assert secret.encode() not in told
        for path in files:
            assert secret.encode() not in path.read_bytes(), path


def test_default_configuration_streams_from_s3():
    """Both programs, with the same section."""
    import yaml

    sections = [
        yaml.safe_load((CHAPTER / "config" / name).read_text())["data"]
        for name in ("config.yaml", "cli_config.yaml")
    ]
    assert sections[0] == sections[1]
    assert sections[0]["dataset"]["init_args"]["url"] == "s3://embedded/ocean.zarr"
    assert json.dumps(sections[0]).count("fork") == json.dumps(sections[0]).count("forkserver")
