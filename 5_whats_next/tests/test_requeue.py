"""train_requeue.sbatch without a cluster: which ends of a training go back into the queue."""

import os
import shutil
import subprocess

import pytest

from src.config import CHAPTER

COMMANDS = {
    "uv": "exit 0",
    # A training that is killed after the next of STEPS.
    "srun": """printf '%s\n' "$*" >>calls
mkdir -p output/slurm-7
step=$(head -n 1 steps) && sed -i 1d steps
[ "$step" ] && echo "$step,0,0.5" >>output/slurm-7/metrics.csv
exit "$CODE\"""",
    "scontrol": "echo $* >>requeued",
}


@pytest.mark.parametrize(
    ("steps", "code", "requeued"),
    [
        ([10, 20, 30, 40, 50, 60], 143, 6),  # it gets on, however often
        ([10, 20, 20, 20, 20, 30], 143, 4),  # three restarts without a step
        ([23, 18, 21, 22, 24], 143, 3),  # nothing is saved, so it begins again
        (["", "", "", "", ""], 143, 3),  # before the first step
        ([10], 0, 0),
        ([10], 1, 0),
        ([10], 4, 0),  # another machine has the run
    ],
)
def test_a_job_is_requeued_while_it_gets_on(tmp_path, steps, code, requeued):
    """Broken by: SLURM_RESTART_COUNT for restarts; no comparison with last_step."""
    run_name = "mine" if code == 4 else "slurm-7"
    shutil.copy(CHAPTER / "train_requeue.sbatch", tmp_path)
    (tmp_path / "bin").mkdir()
    for name, text in COMMANDS.items():
        command = tmp_path / "bin" / name
        command.write_text(f"#!/bin/bash\n{text}\n")
        command.chmod(0o755)
    (tmp_path / "steps").write_text("".join(f"{step}\n" for step in steps))
    environment = os.environ | {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "CODE": str(code),
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_ID": "7",
        "RUN_NAME": "mine" if code == 4 else "",
        "SLURM_CPUS_PER_TASK": "8",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NTASKS_PER_NODE": "4",
    }
    log = tmp_path / "requeued"
    texts = []
    for turn in range(len(steps)):
        done = subprocess.run(
            ["bash", "train_requeue.sbatch", "-c", "mine.yaml"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stderr
        texts.append(done.stdout)
        if not log.exists() or len(log.read_text().splitlines()) <= turn:
            break  # SLURM would not start it again
    times = len(log.read_text().splitlines()) if log.exists() else 0
    assert times == requeued
    is_stopped = times < len(steps) and code == 143
    assert ("not put back into the queue" in texts[-1]) == is_stopped
    call = (tmp_path / "calls").read_text().splitlines()[0]
    assert "--cpus-per-task=8" in call
    words = f"-c mine.yaml --trainer.run_name {run_name} --trainer.output_dir output"
    assert words in call
