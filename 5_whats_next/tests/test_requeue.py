"""train_requeue.sbatch without a cluster: which ends of a training go back into the queue."""

import os
import shutil
import subprocess

import pytest

from src.run.config import CHAPTER

# Bash takes functions before commands. A training ends with CODE; where the next of SAVES is 1, it
# has written a checkpoint.
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
        ("111111", 143, 6),  # it gets on, however often
        ("110001", 137, 4),  # three restarts without a checkpoint
        ("001000", 143, 5),  # one in between
        ("00000", 137, 3),
        ("1", 0, 0),
        ("1", 1, 0),
    ],
)
def test_a_job_is_requeued_while_it_gets_on(tmp_path, saves, code, requeued):
    """Broken by: SLURM_RESTART_COUNT for restarts; no -nt; no 137."""
    shutil.copy(CHAPTER / "train_requeue.sbatch", tmp_path)
    (tmp_path / "saves").write_text("\n".join([*saves, ""]))
    environment = os.environ | {
        "CODE": str(code),
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_CLUSTER_NAME": "laptop",
        "SLURM_JOB_ID": "7",
        "SLURM_CPUS_PER_TASK": "8",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NTASKS_PER_NODE": "4",
    }
    log = tmp_path / "requeued"
    log.touch()
    for turn in range(len(saves)):
        command = ["bash", "-c", COMMANDS]
        done = subprocess.run(command, cwd=tmp_path, env=environment, text=True)
        assert done.returncode == code
        # Old Bash, as macOS has it, compares the times of files in whole seconds.
        for path in tmp_path.glob("output/**/*"):
            os.utime(path, (0, 0))
        if len(log.read_text().splitlines()) <= turn:
            break  # SLURM would not start it again
    assert log.read_text() == "requeue 7\n" * requeued
    call = (tmp_path / "calls").read_text().splitlines()[0]
    assert "-c mine.yaml --trainer.run_name slurm-laptop-7 " in call
