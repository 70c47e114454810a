"""The chapters' sbatch files on a real SLURM of two nodes (slurm/cluster.sh), in a namespace."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from tests.machines import NEEDS_ROOT, NEEDS_SLURM, ROOT, Machine, copy_of, losses

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
# uv itself, after a line that says what SLURM binds a rank to.
UV = f"""#!/bin/bash
echo "rank $SLURM_PROCID: $(nproc) cores"
exec {shutil.which("uv")} "$@"
"""
JOB = ["--ntasks-per-node=1", "--gpus-per-node=0", "--cpus-per-task=2"]


class Cluster:
    """A SLURM of two nodes, and the environment of its jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.machine = Machine("cluster", "192.0.2.1", "node1", "node2")
        script = f"{ROOT}/appendix/slurm/cluster.sh"
        self.machine.run("bash", script, "start", str(folder))
        commands = folder / "bin"
        commands.mkdir()
        uv = commands / "uv"
        uv.write_text(UV)
        uv.chmod(0o755)
        paths = [str(commands), str(Path(sys.executable).parent), os.environ["PATH"]]
        self.environment = os.environ | {
            "SLURM_CONF": f"{folder}/slurm.conf",
            "PATH": ":".join(paths),
            "ACCELERATOR": "cpu",
            "GOMP_SPINCOUNT": "0",
            # A copy of a chapter has no environment of its own, and nothing is to be installed.
            "UV_PROJECT": str(ROOT),
            "UV_NO_SYNC": "1",
        }
        self.environment.pop("OMP_NUM_THREADS", None)
        for line in self.machine.run("ss", "-Hltn").splitlines():
            assert line.split()[3].startswith("127."), line

    def run(self, *words: str, folder: Path = ROOT) -> str:
        return self.machine.run(*words, folder=folder, env=self.environment)

    def submit(self, folder: Path, script: str, *settings: str, **options: str) -> str:
        """Submit a chapter's script; returns the job's number."""
        words = [f"--{name}={value}" for name, value in options.items()]
        text = self.run("sbatch", *JOB, *words, script, *settings, folder=folder)
        return text.split()[-1]

    def state(self, job: str) -> str:
        """PENDING, RUNNING, COMPLETED, …; and why."""
        text = self.run("scontrol", "show", "job", job)
        (state,) = re.findall(r"JobState=(\S+)", text)
        return state

    def close(self) -> None:
        try:
            script = f"{ROOT}/appendix/slurm/cluster.sh"
            self.run("bash", script, "stop", str(self.folder))
        finally:
            self.machine.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    it = Cluster(tmp_path_factory.mktemp("cluster"))
    yield it
    it.close()


def text_of(log: Path) -> str:
    """What a job has written so far."""
    return log.read_text() if log.exists() else ""


def wait_until(condition: Callable[[], bool], log: Path) -> None:
    """Wait for something that the job does; fails with its log."""
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, text_of(log)
        time.sleep(0.1)


@NEEDS_ROOT
@NEEDS_SLURM
def test_two_nodes_give_the_curve_of_one_process(cluster, tmp_path):
    """Broken by: no --cpus-per-task for srun; num_nodes 1."""
    chapter = copy_of("1_multi_gpu", tmp_path)
    log = tmp_path / "log"
    settings = ["-c", "tests/tiny.yaml", "--trainer.output_dir"]
    job = cluster.submit(chapter, "train.sbatch", *settings, "output", output=str(log))
    command = [sys.executable, "lightning_train.py", *settings, "one"]
    subprocess.run(command, cwd=chapter, check=True, capture_output=True)
    wait_until(lambda: cluster.state(job) not in ("PENDING", "RUNNING"), log)
    assert cluster.state(job) == "COMPLETED", log.read_text()
    text = log.read_text()
    assert "1 on each of 2 nodes" in text
    cores = min(2, os.cpu_count() or 1)
    assert {f"rank 0: {cores} cores", f"rank 1: {cores} cores"} <= set(
        text.splitlines()
    )
    one, two = losses(chapter / "one/run_1"), losses(chapter / "output/run_1")
    assert len(one) == 12
    assert two == pytest.approx(one, rel=1e-5)


SETTINGS = [
    "-c",
    "tests/tiny.yaml",
    "--trainer.max_epochs=100000",
    "--trainer.wandb=offline",  # its process gets SIGTERM, too
]


@NEEDS_ROOT
@NEEDS_SLURM
def test_a_job_is_signalled_and_requeued(monkeypatch, cluster, tmp_path):
    """At its time limit, by hand, and not after scancel. Broken by: no scontrol requeue."""
    chapter = copy_of("5_whats_next", tmp_path)
    log = tmp_path / "log"
    cloud = ["--trainer.cloud_storage_path", "s3://embedded/tests"]
    # SLURM looks at its jobs every 30 s: TERM comes 90 to 120 s after the start.
    limit = {"time": "3", "signal": "TERM@60", "output": str(log)}
    settings = [*SETTINGS, "--model.depth=6", "--model.embed_dim=192"]
    job = cluster.submit(chapter, "train_requeue.sbatch", *settings, *cloud, **limit)
    run = chapter / "output" / f"slurm-laptop-{job}"

    def starts() -> list[int]:
        found = re.findall(r"training  steps (\d+) to", text_of(log))
        return [int(step) for step in found]

    def is_further(number: int) -> bool:
        begun = starts()
        return len(begun) == number and max(losses(run), default=0) > begun[-1] + 5

    wait_until(lambda: is_further(2), log)  # the time was over once
    cluster.run("scancel", "--signal=TERM", job)
    wait_until(lambda: is_further(3), log)
    cluster.run("scancel", job)
    wait_until(lambda: cluster.state(job) not in ("RUNNING", "COMPLETING"), log)
    assert cluster.state(job) == "CANCELLED"
    last = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)

    text = log.read_text()
    stops = [int(step) for step in re.findall(r"stopped after step (\d+)", text)]
    assert starts() == [0, *stops[:2]], text
    assert len(stops) == 3  # with a checkpoint after scancel as well
    assert last["global_step"] == stops[2]
    for stop in stops[:2]:
        assert f"last.ckpt of step {stop}: uploaded" in text
    assert "SLURM auto-requeueing enabled" not in text  # Lightning's own

    # A new job goes on with the run, and ends it.
    settings.append(f"--trainer.max_steps={stops[2] + 20}")
    monkeypatch.setitem(cluster.environment, "RUN_NAME", run.name)
    end = tmp_path / "end"
    limit["output"] = str(end)
    job = cluster.submit(chapter, "train_requeue.sbatch", *settings, *cloud, **limit)
    states = ("PENDING", "RUNNING", "COMPLETING")
    wait_until(lambda: cluster.state(job) not in states, end)
    assert cluster.state(job) == "COMPLETED", text_of(end)
    assert f"training  steps {stops[2]} to" in text_of(end)

    # One process that is never stopped.
    command = [sys.executable, "lightning_train.py", *settings]
    command += ["--trainer.run_name=reference", "--trainer.cloud_storage_path=none"]
    subprocess.run(command, cwd=chapter, check=True, capture_output=True)
    assert losses(run) == pytest.approx(losses(chapter / "output/reference"), rel=1e-4)


@NEEDS_ROOT
@NEEDS_SLURM
def test_a_signal_before_the_first_step_and_a_rank_that_is_killed(cluster, tmp_path):
    """The first one requeues, the second does not. Broken by: exit code 0 of an early signal."""
    chapter = copy_of("5_whats_next", tmp_path)
    log = tmp_path / "log"
    cloud = "--trainer.cloud_storage_path=none"
    options = {"output": str(log)}
    # A large model, so that the signal comes before the first step.
    settings = [*SETTINGS, cloud, "--model.depth=12", "--model.embed_dim=384"]
    job = cluster.submit(chapter, "train_requeue.sbatch", *settings, **options)
    run = chapter / "output" / f"slurm-laptop-{job}"

    wait_until(lambda: "Initializing distributed" in text_of(log), log)
    cluster.run("scancel", "--signal=TERM", job)
    wait_until(lambda: (run / "restarts").exists(), log)
    assert not losses(run)
    wait_until(lambda: len(losses(run)) > 5, log)

    pids = cluster.run(
        "pgrep", "-f", f"lightning_train.py.*slurm-laptop-{job} "
    ).split()
    ranks = [pid for pid in pids if "SLURM_PROCID=1" in environment_of(cluster, pid)]
    cluster.run("kill", "-KILL", ranks[0])
    wait_until(lambda: cluster.state(job) not in ("RUNNING", "COMPLETING"), log)
    assert cluster.state(job) == "FAILED"
    assert "lost      rank 1 on cluster" in log.read_text()


@NEEDS_ROOT
@NEEDS_SLURM
def test_an_error_of_rank_0_is_not_requeued(monkeypatch, cluster, tmp_path):
    """Broken by: no "$task"; srun ends the other ranks with SIGTERM, and they say 143."""
    chapter = copy_of("5_whats_next", tmp_path)
    log = tmp_path / "log"
    monkeypatch.setitem(cluster.environment, "RUN_NAME", "mine")
    (chapter / "output").mkdir()
    with FileLock(chapter / "output" / ".mine.training"):
        job = cluster.submit(
            chapter, "train_requeue.sbatch", "-c", "tests/tiny.yaml", output=str(log)
        )
        wait_until(lambda: cluster.state(job) not in ("PENDING", "RUNNING"), log)
    assert cluster.state(job) == "FAILED", log.read_text()
    assert text_of(log).count("another process is training") == 1
    assert not (chapter / "output" / "mine" / "restarts").exists()


def environment_of(cluster: Cluster, pid: str) -> list[str]:
    """The variables of a Python process, as NAME=value; none of another program's."""
    text = cluster.run("cat", f"/proc/{pid}/environ")
    name = cluster.run("cat", f"/proc/{pid}/comm")
    return text.split("\0") if name.startswith("python") else []


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_server_that_does_not_start_is_named(tmp_path):
    """Broken by: ``set -e``, which ends the script there without a word."""
    munged = tmp_path / "munged"
    munged.write_text("#!/bin/bash\necho no entropy >&2\nexit 1\n")
    munged.chmod(0o755)
    script = f"{ROOT}/appendix/slurm/cluster.sh"
    command = ["bash", script, "start", f"{tmp_path}/cluster"]
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "no entropy" in done.stderr
