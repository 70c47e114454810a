"""Several processes, launched for real: one curve, signals, kills, machines, GPUs."""

import json
import socket

import numpy as np
import pytest
import torch

from src.run.config import CHAPTER
from tests.runs import finish, rows, start, train

pytestmark = pytest.mark.slow
OCEAN = [f"-c={CHAPTER}/tests/ocean.yaml"]
DDP = [*OCEAN, "--trainer.devices=2", "--trainer.strategy=ddp"]
BY_HAND = [*OCEAN, "--trainer.picture_every_n_epochs=0"]
SCRIPT = ["lightning_train.py"]
TORCHRUN = ["-m", "torch.distributed.run"]
# As many as can share a batch of eight.
GPUS = max(n for n in (0, 1, 2, 4, 8) if n <= torch.cuda.device_count())
# For two_ranks.py: a script, and what is broken, or the rank that gets a signal and its number.
RIGHT = ("lightning_train", "")
MUTATIONS = [("lightning_train", "mean of means"), ("lightning_train", "masks by rank")]
STOPPED = [("lightning_train", "1 15"), ("pytorch_ddp_train", "1 2")]
KILLED = ("lightning_train", "0 9")  # the last one, because it ends the launch


# All losses, of training and validation.
def curve(folder) -> np.ndarray:
    return np.array(
        [float(row["train_loss"] or row["val_loss"]) for row in rows(folder)]
    )


# The runs' folders, all from one launch, which also resumes the stopped ones; and its output.
@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    folders, entries = {}, []
    for script, how in (RIGHT, *MUTATIONS, *STOPPED, KILLED):
        output = tmp_path_factory.mktemp("two_ranks")
        settings = [
            f"--trainer.output_dir={output}",
            "--trainer.checkpoint_every_n_steps=7",
            *(DDP if script == "lightning_train" else BY_HAND),
        ]
        if (script, how) in MUTATIONS:
            settings.append("--trainer.max_steps=30")
        folders[script, how] = output / "run_1"
        entries.append((script, how, settings))
        if (script, how) in STOPPED:
            entries.append((script, "", [*settings, f"--resume={output}/run_1"]))
    command = [*TORCHRUN, "--standalone", "--local-addr=127.0.0.1"]
    command += ["--nproc-per-node=2", "tests/two_ranks.py"]
    return folders, finish(start(output, json.dumps(entries), command=command), 1)


def test_two_ranks_give_the_curve_of_one_process(monkeypatch, tmp_path, two_ranks):
    """The ranks see more and less land. Broken by: each of MUTATIONS, which are tried here."""
    one = curve(train(monkeypatch, tmp_path, *OCEAN))
    for key in (RIGHT, *MUTATIONS):
        two = curve(two_ranks[0][key])[:50]
        difference = np.abs(two / one[: len(two)] - 1).max()
        assert difference > 1e-3 if key in MUTATIONS else difference < 1e-5, (
            key,
            difference,
        )


def test_a_signal_to_one_rank_stops_all_and_the_run_goes_on(two_ranks):
    """To the bits of Lightning's whole run. By hand the signal comes during the exchange.

    Broken by: no reduce in StopAndSave; stop.number in place of number by hand (both hang).
    """
    folders, console = two_ranks
    for key, step, code in zip(STOPPED, (48, 50), (143, 130), strict=True):
        assert f"stopped after step {step};" in console
        assert f"exit code of rank 0: {code}" in console
        assert f"steps {step} to 76" in console
        assert rows(folders[key]) == rows(folders[RIGHT])


def test_killed_on_one_machine_it_goes_on_with_two(two_ranks):
    """SIGKILL of rank 0, which alone writes; then two agents. Broken by: first_batch = 0."""
    folder = two_ranks[0][KILLED]
    assert rows(folder)[-1]["step"] == "47"  # the last checkpoint is that of step 42
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = ["--master-addr=127.0.0.1", f"--master-port={free.getsockname()[1]}"]
    machines = ["--trainer.num_nodes=2", "--trainer.devices=1", f"--resume={folder}"]
    agents = []
    for rank in (0, 1):
        command = [*TORCHRUN, "--nnodes=2", *address, f"--node-rank={rank}", *SCRIPT]
        agents.append(start(folder.parent, *OCEAN, *machines, command=command))
    for agent in agents:
        finish(agent)
    assert rows(folder) == rows(two_ranks[0][RIGHT])


@pytest.mark.skipif(GPUS == 0, reason="needs a GPU")
def test_gpus_with_nccl_give_the_curve_of_one_gpu_and_of_the_cpu(monkeypatch, tmp_path):
    # Also where there is only one GPU. After step 50 the differences of rounding grow.
    cuda = [*OCEAN, "--trainer.accelerator=cuda"]
    ddp = [*cuda, f"--trainer.devices={GPUS}", "--trainer.strategy=ddp"]
    by_hand = [
        *TORCHRUN,
        "--standalone",
        f"--nproc-per-node={GPUS}",
        "pytorch_ddp_train.py",
    ]
    one = curve(train(monkeypatch, tmp_path, *cuda))[:50]
    for settings, command in ((ddp, SCRIPT), (cuda, by_hand), (OCEAN, SCRIPT)):
        finish(start(tmp_path, *settings, command=command))
    for run, tolerance in (("run_2", 1e-5), ("run_3", 1e-5), ("run_4", 1e-3)):
        np.testing.assert_allclose(curve(tmp_path / run)[:50], one, rtol=tolerance)
