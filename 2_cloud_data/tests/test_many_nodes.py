"""Launched for real: several machines, killed ranks, restarts, signals, SLURM's variables.

"Machines" are agents of torchrun that meet at a port of this one.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from src.config import CHAPTER

from tests.lightning_runs import SCRIPT, TWO, assert_same_lightning_run, torchrun
from tests.runs import TINY, wait_for_step, wait_until_gone

pytestmark = pytest.mark.slow
FULL = os.environ.get("FULL_MATRIX")  # what one process, or another test of two, shows as well
STEPS = 60
SETTINGS = [
    *TINY,
    f"--data.dataset.num_samples={8 * STEPS}",
    "--trainer.max_epochs=1",
    "--trainer.checkpoint_every_n_steps=7",
]
ENDLESS = [*SETTINGS, "--data.dataset.num_samples=800000"]  # until something ends it
STANDALONE = ["--standalone", "--nproc-per-node=2"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def finish(process: subprocess.Popen) -> str:
    """What a process printed until it ended; a hang fails here."""
    try:
        return process.communicate(timeout=120)[0]
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # torchrun ends its processes
        pytest.fail(f"still running:\n{process.communicate(timeout=60)[0]}")


def finish_well(process: subprocess.Popen) -> str:
    output = finish(process)
    assert process.returncode == 0, output
    return output


def ranks_of(process: subprocess.Popen) -> list[int]:
    """Process ids of the ranks that a launcher has started, in the order of their numbers."""
    command = ["ps", "-A", "-o", "pid=,ppid="]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    pairs = [map(int, line.split()) for line in printed.splitlines()]
    return sorted(pid for pid, parent in pairs if parent == process.pid)


def wait_until_ended(pid: int) -> None:
    """A rank that has ended stays a zombie as long as its torchrun is stopped."""
    process = psutil.Process(pid)
    deadline = time.monotonic() + 60
    while process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the rank goes on without the other one"
        with contextlib.suppress(psutil.TimeoutExpired):
            process.wait(0.1)


@pytest.fixture(scope="module")
def one_node(tmp_path_factory) -> Path:
    """The run that all others have to repeat: two processes, one machine, nobody killed."""
    output = tmp_path_factory.mktemp("one_node")
    process = torchrun(*STANDALONE, str(SCRIPT), *SETTINGS, *TWO, f"--trainer.output_dir={output}")
    finish_well(process)
    return output / "run_1"


def test_two_machines_have_the_curve_of_one(one_node, tmp_path):
    meeting = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1"]
    meeting += [f"--master-port={free_port()}"]
    shape = ["--trainer.num_nodes=2", "--trainer.devices=1", "--trainer.strategy=ddp"]
    where = f"--trainer.output_dir={tmp_path}"
    agents = [
        torchrun(*meeting, f"--node-rank={rank}", str(SCRIPT), *SETTINGS, *shape, where)
        for rank in (0, 1)
    ]
    first, second = (finish_well(agent) for agent in agents)
    assert "ranks     2 (1 on each of 2 nodes)" in first
    assert "ranks" not in second  # rank 0 alone speaks
    assert [folder.name for folder in tmp_path.iterdir()] == ["run_1"]
    assert_same_lightning_run(one_node, tmp_path / "run_1")


def test_killed_rank_ends_the_job(tmp_path):
    """In bounded time, with an error that names the rank and the signal."""
    where = f"--trainer.output_dir={tmp_path}"
    process = torchrun(*STANDALONE, str(SCRIPT), *ENDLESS, *TWO, where)
    wait_for_step(process, tmp_path / "run_1", 10)
    zero, one = ranks_of(process)
    # torchrun, which looks every 0.1 s, ends the other rank, maybe before that one has noticed.
    process.send_signal(signal.SIGSTOP)
    os.kill(one, signal.SIGKILL)
    wait_until_ended(zero)
    process.send_signal(signal.SIGCONT)
    output = finish(process)
    assert process.returncode == 1
    assert f"exitcode  : -9 (pid: {one})" in output
    assert "rank      : 1" in output
    assert output.count("error: this rank lost another one") == 1
    with pytest.raises(ProcessLookupError):
        os.kill(zero, 0)


def test_restarted_job_ends_on_the_same_curve(one_node, tmp_path, monkeypatch):
    """All ranks start again, and they go on in the same run, from its last checkpoint.

    This time it is rank 0 that dies, which holds what the ranks meet at.
    """
    # Else the ranks of the second start may find the addresses of the first; see README.md.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    where = f"--trainer.output_dir={tmp_path}"
    words = [*STANDALONE, "--max-restarts=1", str(SCRIPT), *SETTINGS, *TWO, where]
    process = torchrun(*words)
    wait_for_step(process, tmp_path / "run_1", 20)
    os.kill(ranks_of(process)[0], signal.SIGKILL)
    output = finish_well(process)
    assert [folder.name for folder in tmp_path.iterdir()] == ["run_1"]
    first, second = re.findall(r"training  steps (\d+) to", output)
    assert (first, int(second) % 7) == ("0", 0)
    assert int(second) >= 14
    assert_same_lightning_run(one_node, tmp_path / "run_1")


@pytest.mark.parametrize("number", [signal.SIGTERM, *([signal.SIGINT] if FULL else [])])
def test_interrupt_saves_and_ends_all_ranks(one_node, tmp_path, number):
    """Lightning's own launcher; the signal goes to both ranks, as from a terminal or SLURM."""
    where = f"--trainer.output_dir={tmp_path}"
    words = [sys.executable, str(SCRIPT), *TWO, where]
    env = os.environ | {"WANDB_MODE": "disabled", "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": env}
    process = subprocess.Popen([*words, *SETTINGS], start_new_session=True, **pipes)
    folder = tmp_path / "run_1"
    wait_for_step(process, folder, 10)
    os.killpg(process.pid, number)
    output = finish(process)
    assert process.returncode == 128 + number, output
    assert "Traceback (most" not in output
    assert output.count("lightning_train.py --resume") == 1
    saved = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["global_step"]
    assert f"stopped after step {saved}" in output
    wait_until_gone(process.pid)
    if number == signal.SIGTERM:  # both save in the same way, and a resumed run takes long
        finish_well(subprocess.Popen([*words, f"--resume={folder}"], **pipes))
        assert_same_lightning_run(one_node, folder)


SRUN = """#!/bin/bash
# Stands in for SLURM's srun: starts the command once for each task, with SLURM's variables.
while [[ $1 == --* ]]; do shift; done
for task in 0 1; do
  SLURM_PROCID=$task SLURM_NODEID=$task SLURM_LOCALID=0 "$@" & pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || exit; done
"""
UV = """#!/bin/bash
while [[ $# -gt 0 && $1 != python ]]; do shift; done
[[ $# -eq 0 ]] || exec "$PYTHON" "${@:2}"
"""


def test_job_file_for_slurm(one_node, tmp_path):
    """train.sbatch as it is, with the variables that SLURM sets for two machines of one task."""
    for name, text in {"srun": SRUN, "uv": UV}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    variables = {
        "SLURM_SUBMIT_DIR": CHAPTER,
        "SLURM_JOB_ID": free_port() % 1000 + 15000,  # Lightning takes the port from it
        "SLURM_JOB_NAME": "train",
        "SLURM_JOB_NUM_NODES": 2,
        "SLURM_NNODES": 2,
        "SLURM_NTASKS": 2,
        "SLURM_NTASKS_PER_NODE": 1,
        "SLURM_NODELIST": "127.0.0.1",
        "SLURM_JOB_NODELIST": "127.0.0.1",
        "ACCELERATOR": "cpu",
        "WANDB_MODE": "disabled",
        "OMP_NUM_THREADS": 1,
        "PYTHON": sys.executable,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    larger = tmp_path / "larger.yaml"  # the job's size counts, and not a config file's
    larger.write_text("trainer:\n  devices: 8\n")
    arguments = ["-c", str(larger), *SETTINGS, f"--trainer.output_dir={tmp_path}"]
    process = subprocess.Popen(
        ["bash", str(CHAPTER / "train.sbatch"), *arguments],
        env=os.environ | {name: str(value) for name, value in variables.items()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output = finish_well(process)
    assert "ranks     2 (1 on each of 2 nodes)" in output
    assert_same_lightning_run(one_node, tmp_path / "run_1")


def test_one_process_downloads_and_the_others_read():
    output = finish_well(torchrun(*STANDALONE, "rank_zero_download.py"))
    assert output.count("GET /ostia_monthly.nc") == output.count("downloaded") == 1
    means = re.findall(r"rank (\d): read \(54, 18, 432\), mean ([\d.]+) K", output)
    assert sorted(rank for rank, _ in means) == ["0", "1"]
    assert len({mean for _, mean in means}) == 1


@pytest.mark.skipif(not FULL, reason="test_ranks.py has downloads that fail in a training")
def test_failed_download_ends_every_rank():
    address = f"http://127.0.0.1:{free_port()}/absent.nc"
    process = torchrun(*STANDALONE, "rank_zero_download.py", address)
    output = finish(process)
    assert process.returncode == 1
    assert output.count(f"error: data.dataset.url: cannot download {address}") == 1
