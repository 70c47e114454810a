"""train_requeue.sbatch without a cluster: which ends of a training go back into the queue."""

import os
import shutil
import subprocess

import pytest

from src.run.config import CHAPTER

# Bash takes functions before commands. A training is killed, after a checkpoint if the next of
# SAVES is 1.
COMMANDS = r"""
uv() { :; }
srun() {
  printf '%s\n' "$*" >>calls
  mkdir -p output/slurm-laptop-7/checkpoints
  local save=$(head -n 1 saves) && sed 1d saves >rest && mv rest saves
  [ "$save" = 1 ] && touch output/slurm-laptop-7/checkpoints/last.ckpt
  return "$CODE"
}
scontrol() { echo "$*" >>requeued; }
source train_requeue.sbatch -c mine.yaml
"""


@pytest.mark.parametrize(
    ("saves", "code", "requeued"),
    [
        ([1, 1, 1, 1, 1, 1], 143, 6),  # it gets on, however often
        ([1, 1, 0, 0, 0, 1], 143, 4),  # three restarts without a checkpoint
        ([0, 0, 1, 0, 0, 0], 143, 5),  # one in between
        ([0, 0, 0, 0, 0], 143, 3),
        ([1], 0, 0),
        ([1], 1, 0),
        ([1], 4, 0),  # another machine has the run
    ],
)
def test_a_job_is_requeued_while_it_gets_on(tmp_path, saves, code, requeued):
    """Broken by: SLURM_RESTART_COUNT for restarts; no -nt; no SLURM_CLUSTER_NAME."""
    run_name = "mine" if code == 4 else "slurm-laptop-7"
    shutil.copy(CHAPTER / "train_requeue.sbatch", tmp_path)
    (tmp_path / "saves").write_text("".join(f"{number}\n" for number in saves))
    environment = os.environ | {
        "CODE": str(code),
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_CLUSTER_NAME": "laptop",
        "SLURM_JOB_ID": "7",
        "RUN_NAME": "mine" if code == 4 else "",
        "SLURM_CPUS_PER_TASK": "8",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NTASKS_PER_NODE": "4",
    }
    log = tmp_path / "requeued"
    texts = []
    for turn in range(len(saves)):
        done = subprocess.run(
            ["bash", "-c", COMMANDS],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stderr
        texts.append(done.stdout)
        # Old Bash, as macOS has it, compares the times of files in whole seconds.
        for path in tmp_path.glob("output/**/*"):
            os.utime(path, (0, 0))
        if not log.exists() or len(log.read_text().splitlines()) <= turn:
            break  # SLURM would not start it again
    times = len(log.read_text().splitlines()) if log.exists() else 0
    assert times == requeued
    is_stopped = times < len(saves) and code == 143
    assert ("not put back into the queue" in texts[-1]) == is_stopped
    call = (tmp_path / "calls").read_text().splitlines()[0]
    assert "--cpus-per-task=8" in call
    words = f"-c mine.yaml --trainer.run_name {run_name} --trainer.output_dir output"
    assert words in call
