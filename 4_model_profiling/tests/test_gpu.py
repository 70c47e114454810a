"""The same training on GPUs: the curve of the CPU, and that of one GPU with NCCL in between."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.lightning_runs import OCEAN, SCRIPT, call_lightning, curve, torchrun

GPUS = torch.cuda.device_count()
needs_gpu = pytest.mark.skipif(GPUS < 1, reason="needs a GPU")
needs_two_gpus = pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
STRATEGIES = ["ddp", "fsdp", "by hand"]


def ended(process: subprocess.Popen) -> None:
    """Wait for a training that succeeds."""
    try:
        printed, _ = process.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun ends its ranks, after 30 s by force
        raise AssertionError(f"hangs:\n{process.communicate()[0]}") from None
    assert process.returncode == 0, printed


@pytest.fixture(scope="module")
def one_gpu(tmp_path_factory) -> np.ndarray:
    """The curve of one GPU, in a process that no launcher has started."""
    output = tmp_path_factory.mktemp("one_gpu")
    command = [sys.executable, str(SCRIPT), *OCEAN, "--trainer.accelerator=cuda"]
    process = subprocess.Popen(
        [*command, f"--trainer.output_dir={output}"],
        env=os.environ | {"WANDB_MODE": "disabled"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    ended(process)
    return curve(output / "run_1")


def curve_with_nccl(output: Path, devices: int, strategy: str) -> np.ndarray:
    """The curve of the same training under torchrun, with one process for each GPU."""
    settings = [*OCEAN, "--trainer.accelerator=cuda", f"--trainer.output_dir={output}"]
    if strategy == "by hand":
        script = "pytorch_ddp_train.py"
    else:
        script = SCRIPT.name
        settings += [f"--trainer.devices={devices}", f"--trainer.strategy={strategy}"]
    ended(torchrun("--standalone", f"--nproc-per-node={devices}", script, *settings))
    return curve(output / "run_1")


@needs_gpu
@pytest.mark.slow
def test_a_gpu_follows_the_cpu(one_gpu, monkeypatch, tmp_path):
    """The first 50 steps; later the roundings, which are others there, have grown."""
    assert call_lightning(monkeypatch, *OCEAN, f"--trainer.output_dir={tmp_path}") == 0
    cpu = curve(tmp_path / "run_1")
    assert len(cpu) == len(one_gpu) >= 50
    np.testing.assert_allclose(one_gpu[:50], cpu[:50], rtol=1e-3)


@needs_gpu
@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nccl_changes_nothing_on_one_gpu(one_gpu, tmp_path, strategy):
    np.testing.assert_allclose(curve_with_nccl(tmp_path, 1, strategy), one_gpu, rtol=1e-5)


@needs_two_gpus
@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_gpus_have_the_curve_of_one(one_gpu, tmp_path, strategy):
    """At the same global batch."""
    np.testing.assert_allclose(curve_with_nccl(tmp_path, 2, strategy), one_gpu, rtol=1e-5)


@needs_gpu
@pytest.mark.parametrize("lean", [False, True])
def test_the_step_waits_for_nothing(lean):
    """Forward and backward only fill the queue: no number comes back, none is copied there."""
    from src.model.pytorch_model import MaskedAutoencoder

    model = MaskedAutoencoder((1, 4, 8, 8), (2, 4, 4), lean_decoder=lean).cuda()
    x, index = torch.randn(4, 1, 4, 8, 8).cuda(), torch.arange(4).cuda()
    model(x, index, 0).squared_error.backward()  # libraries start here
    torch.cuda.set_sync_debug_mode("error")
    try:
        output = model(x, index, 1)
        (output.squared_error / output.valid_count.clamp(min=1)).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
