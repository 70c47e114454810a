"""SIGTERM to any rank: a checkpoint on the disk and in the cloud, and exit code 143."""

import contextlib
import os
import re
import signal
import subprocess

import psutil
import pytest
from src import preemption
from src.checkpoint_files import newest_intact
from src.cloud_run import find_run

from tests.runs import start, wait_for_step

pytestmark = pytest.mark.slow
RUNS = "s3://embedded/tests"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
RANKS = "--trainer.devices=2"
IMPATIENT = "from src import preemption; preemption.PATIENCE = 2; import runpy; "
IMPATIENT += "runpy.run_path('lightning_train.py', run_name='__main__')"


def ranks(process) -> list[psutil.Process]:
    """The processes that train, in the order of their start."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]
    return [p for p in family if p.cmdline()[1:] and p.cmdline()[1].endswith("lightning_train.py")]


@pytest.mark.parametrize("target", ["single", "rank 0", "rank 1", "group", "torchrun"])
def test_sigterm(tmp_path, target):
    """Broken by: no reduce in StopAndSave; Lightning's own handler; no on_exception (cloud)."""
    settings = [f"--trainer.run_name={tmp_path.name}", f"--trainer.cloud_storage_path={RUNS}"]
    settings += ["--trainer.max_epochs=1000", *([] if target == "single" else [RANKS])]
    launcher = TORCHRUN if target == "torchrun" else []
    process = start(tmp_path, *settings, command=[*launcher, "lightning_train.py"])
    folder = tmp_path / tmp_path.name
    wait_for_step(process, folder, 10)
    if target == "group":
        os.killpg(process.pid, signal.SIGTERM)
    elif target == "rank 1":
        ranks(process)[1].terminate()
    else:
        process.terminate()  # torchrun passes it on
    console, _ = process.communicate(timeout=60)
    assert process.returncode == (1 if target == "torchrun" else 143), console
    (step,) = re.findall(r"stopped after step (\d+)", console)
    assert f"last.ckpt of step {step}: uploaded" in console
    assert newest_intact(folder / "checkpoints")[1] == int(step)
    elsewhere = tmp_path / "elsewhere" / tmp_path.name
    assert newest_intact(find_run(elsewhere, "must", RUNS).parent)[1] == int(step)


@pytest.mark.parametrize("workers", [0, 2])
def test_sigterm_while_data_do_not_arrive(tmp_path, workers):
    """The last checkpoint counts. Broken by: no TimedInterrupt."""
    assert preemption.PATIENCE < 25
    dataset = ["--data.dataset=tests.stalled.StalledDataset", f"--data.num_workers={workers}"]
    sign, most = tmp_path / "sign", 40 // max(workers, 1)  # 32 in an epoch, and one for the shape
    dataset += [f"--data.dataset.sign={sign}", f"--data.dataset.most={most}"]
    process = start(tmp_path, *dataset, command=["-c", IMPATIENT])
    while not sign.exists():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)  # rather than spin: the training needs the processor
        assert process.returncode is None, process.communicate()[0]
    process.terminate()
    console, _ = process.communicate(timeout=60)
    assert process.returncode == 143, console
    assert "ended inside of a step" in console
    assert newest_intact(tmp_path / "run_1" / "checkpoints")[1] == 4
