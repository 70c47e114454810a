"""The chapters' sbatch files on a real SLURM of two nodes (slurm/cluster.sh)."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.test_machines import losses

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ["bash", ROOT / "appendix" / "slurm" / "cluster.sh"]
ENVIRONMENT = os.environ | {
    "ACCELERATOR": "cpu",
    # A copy of a chapter has no environment of its own, and nothing is to be installed.
    "UV_PROJECT": str(Path(sys.prefix).parent),
    "UV_NO_SYNC": "1",
}
SMALL = ["--ntasks-per-node=1", "--gpus-per-node=0", "--cpus-per-task=1"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not shutil.which("sbatch"), reason="needs SLURM"),
]


class Job:
    """A chapter's sbatch file in the queue, in a copy of the chapter.

    Args:
        cluster: folder of the SLURM.
        folder: takes the copy and the log.
        script: such as 1_multi_gpu/train.sbatch.
        settings: of the training.
        options: of sbatch.
    """

    def __init__(self, cluster, folder, script, *settings, **options) -> None:
        self.cluster = cluster
        chapter, name = script.split("/")
        ignored = shutil.ignore_patterns("output", "results", "__pycache__")
        self.folder = shutil.copytree(ROOT / chapter, folder / chapter, ignore=ignored)
        self.log = folder / "log"
        words = [f"--{key}={value}" for key, value in options.items()]
        submit = ["sbatch", "--parsable", f"--output={self.log}", *SMALL, *words]
        self.number = self.run(*submit, name, *settings).strip()

    def run(self, *words: str) -> str:
        """What a command prints."""
        command = ["bash", "-c", '. "$0/environment"; "$@"', self.cluster, *words]
        return subprocess.check_output(
            command, cwd=self.folder, env=ENVIRONMENT, text=True
        )

    def end(self) -> str:
        """How it ends, with its exit code and the signal."""
        ended = r"JobState=((?:COMPLETED|FAILED|CANCELLED|TIMEOUT) ).*ExitCode=(\S+)"
        while True:
            text = self.run("scontrol", "show", "job", self.number)
            if found := re.search(ended, text, re.DOTALL):
                return "".join(found.groups())
            time.sleep(0.5)

    def numbers(self, pattern: str) -> list[int]:
        """Those that the log has so far."""
        text = self.log.read_text() if self.log.exists() else ""
        return [int(number) for number in re.findall(pattern, text)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    subprocess.run([*CLUSTER, "start", folder], check=True)
    yield folder
    subprocess.run([*CLUSTER, "stop", folder], check=True)


def test_two_nodes_give_the_curve_of_one(cluster, tmp_path):
    """Broken by: num_nodes 1 in train.sbatch."""
    settings = ["-c", "tests/ocean.yaml", "--trainer.max_epochs=1"]
    job = Job(cluster, tmp_path, "1_multi_gpu/train.sbatch", *settings)
    assert job.end() == "COMPLETED 0:0", job.log.read_text()
    command = [sys.executable, "lightning_train.py", *settings]
    subprocess.run([*command, "--trainer.output_dir=one"], cwd=job.folder, check=True)
    two = losses(job.folder / "output")
    np.testing.assert_allclose(two, losses(job.folder / "one"), rtol=1e-5)


def test_a_job_at_its_time_limit_stops_and_saves(cluster, tmp_path):
    """Broken by: no --signal."""
    settings = ["-c", "tests/tiny.yaml", "--trainer.max_epochs=100000"]
    # SLURM looks at its jobs every 30 s: TERM comes 90 to 120 s after the start.
    limits = {"time": 3, "signal": "TERM@60"}
    job = Job(cluster, tmp_path, "1_multi_gpu/train.sbatch", *settings, **limits)
    assert job.end() == "FAILED 143:0", job.log.read_text()
    (step,) = job.numbers(r"stopped after step (\d+)")
    last = job.folder / "output" / "run_1" / "checkpoints" / "last.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] == step > 0


def test_a_requeued_job_goes_on_to_its_end(cluster, tmp_path):
    """After a signal, and after a kill. Broken by: no scontrol requeue; 143 alone."""
    settings = ["-c", "tests/tiny.yaml", "--trainer.max_epochs=500"]
    job = Job(cluster, tmp_path, "5_whats_next/train_requeue.sbatch", *settings)
    for part, signal in enumerate(["TERM", "KILL"], 1):
        while len(job.numbers(r"(?m)^epoch (\d+):")) < 2 * part:
            assert not job.run("squeue", "-h", "-t", "CD,F"), job.log.read_text()
            time.sleep(0.1)
        if signal == "TERM":
            job.run("scancel", "--signal=TERM", job.number)
        else:
            job.run("pkill", "-KILL", "-f", f"^[^ ]*python .*{job.number} ")
    assert job.end() == "COMPLETED 0:0", job.log.read_text()
    starts = job.numbers(r"training  steps (\d+) to")
    assert len(starts) == 3
    assert starts[1:2] == job.numbers(r"stopped after step (\d+)")
    (run,) = job.folder.glob("output/slurm-*")
    assert list(losses(run.parent)) == list(range(1, 2001))
