"""The job file that requeues itself, with stand-ins for what a cluster has."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from src.config import CHAPTER, parse_config
from src.lightning_settings import LightningSettings

FILE = CHAPTER / "train_requeue.sbatch"
# Stands in for the training: writes down how it was called, and ends as the test says.
TRAINING = """[[ $1 == run ]] || exit 0
echo "${@:5}" >> "$FOLDER/calls"
read -r code codes < "$FOLDER/codes"
echo "$codes" > "$FOLDER/codes"
exit "$code"
"""
COMMANDS = {
    # srun starts a process for each task, and returns the largest of their exit codes.
    "srun": 'while [[ $1 == --* ]]; do shift; done\n"$@"',
    "uv": TRAINING,
    "scontrol": 'echo "$*" >> "$FOLDER/requests"\nexit "${SCONTROL_CODE:-0}"',
}


class Cluster:
    """What SLURM does with a job: it starts the file, again if that was asked for."""

    def __init__(self, folder: Path, codes: str) -> None:
        self.folder, self.restarts = folder, 0
        (folder / "codes").write_text(f"{codes}\n")
        (folder / "requests").touch()
        for name, text in COMMANDS.items():
            (folder / name).write_text(f"#!/bin/bash\n{text}\n")
            (folder / name).chmod(0o755)

    def start(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
        slurm = {
            "SLURM_SUBMIT_DIR": str(CHAPTER),
            "SLURM_JOB_ID": "4711",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_NTASKS_PER_NODE": "4",
            "FOLDER": str(self.folder),
            "PATH": f"{self.folder}:{os.environ['PATH']}",
        }
        if self.restarts:  # SLURM does not set it in a job's first part
            slurm["SLURM_RESTART_COUNT"] = str(self.restarts)
        return subprocess.run(
            ["bash", str(FILE), *arguments],
            env=os.environ | slurm | variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def run(self, *arguments: str, **variables: str) -> list[subprocess.CompletedProcess]:
        """All parts of a job."""
        parts = []
        while True:
            asked = len(self.requeued)
            parts.append(self.start(*arguments, **variables))
            if len(self.requeued) == asked:
                return parts
            self.restarts += 1

    @property
    def requeued(self) -> list[str]:
        return (self.folder / "requests").read_text().splitlines()

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


def test_interrupted_job_goes_on_as_the_same_run(tmp_path):
    cluster = Cluster(tmp_path, "143 143 0")
    parts = cluster.run("--data.batch_size", "64")
    assert parts[-1].returncode == 0, parts[-1].stderr
    assert cluster.requeued == ["requeue 4711"] * 2
    assert len(cluster.calls) == 3
    assert len(set(cluster.calls)) == 1  # each part asks for the same
    assert "--trainer.run_name slurm-4711 --trainer.resume_policy auto" in cluster.calls[0]
    assert "--data.batch_size 64" in cluster.calls[0]
    assert "requeued: restart 2 of at most 20" in parts[1].stdout


def test_config_file_overrides_the_name_and_not_the_size(tmp_path):
    """The real training's file has a name of its own, and devices: 8; this job has 2 x 4."""
    cluster = Cluster(tmp_path, "0")
    cluster.run("-c", str(CHAPTER / "config" / "real.yaml"))
    config, _ = parse_config("", cluster.calls[0].split(), settings=LightningSettings)
    assert (config.trainer.num_nodes, config.trainer.devices) == (2, 4)
    assert config.trainer.run_name == "real"
    assert config.trainer.resume_policy == "auto"


@pytest.mark.parametrize("code", [0, 1, 130, 137])
def test_nothing_else_is_requeued(tmp_path, code):
    """A finished run, an error, Ctrl-C, no memory left."""
    cluster = Cluster(tmp_path, f"{code} 0")
    (part,) = cluster.run()
    assert part.returncode == code
    assert not cluster.requeued


def test_restarts_are_bounded(tmp_path):
    cluster = Cluster(tmp_path, "143 " * 9)
    parts = cluster.run(MAX_RESTARTS="3")
    assert len(parts) == 4
    assert parts[-1].returncode == 143
    assert "not requeued: 3 restarts; MAX_RESTARTS=3" in parts[-1].stderr


def test_refused_requeue_says_how_to_go_on(tmp_path):
    cluster = Cluster(tmp_path, "143")
    part = cluster.start("--data.batch_size", "64", SCONTROL_CODE="1")
    assert part.returncode == 143
    command = "sbatch train_requeue.sbatch --data.batch_size 64 --trainer.run_name slurm-4711"
    assert command in part.stderr


def test_cancelled_job_is_not_requeued(tmp_path):
    """Scancel sends SIGTERM to the job's script as well, which then must not ask for more."""
    cluster = Cluster(tmp_path, "143")
    (tmp_path / "srun").write_text("#!/bin/bash\nkill -TERM $PPID\nexit 143\n")
    assert cluster.start().returncode == -15
    assert not cluster.requeued


def test_what_slurm_is_told():
    lines = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", FILE.read_text(), flags=re.MULTILINE))
    assert lines["requeue"] == ""
    assert lines["open-mode"] == "append"
    assert lines["signal"] == "TERM@120"  # with B: the signal would go to the script alone
    assert "%j" in lines["output"]


def test_job_files_are_linted():
    for name in ("train.sbatch", "train_requeue.sbatch"):
        subprocess.run(["bash", "-n", CHAPTER / name], check=True)
        if checker := shutil.which("shellcheck", path=Path(sys.executable).parent):
            found = subprocess.run([checker, CHAPTER / name], capture_output=True, text=True)
            assert not found.stdout
