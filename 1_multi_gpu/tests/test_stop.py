"""Signals in every phase of a training, and ranks that fail alone."""

import signal

import lightning_train
import pytest
import torch

from src.run.errors import one_line_errors
from tests.in_phase import event
from tests.runs import TINY, call, finish, start, wait_until_gone

# The phase, and the step of the checkpoint after a signal in it.
STEPS = {
    "opening data": [],
    "sanity validation": [],
    "before the first step": [],
    "step": [1],
    "validation": [4],
    "report": [12],
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("phase", STEPS)
def test_a_signal_ends_a_run_in_any_phase(monkeypatch, tmp_path, phase, number):
    """Broken by: no setup in StopAndSave (sanity validation ends with 0); no request.close."""
    with pytest.raises(SystemExit) as stopped, one_line_errors(), event(phase, number):
        call(
            monkeypatch,
            TINY,
            f"--trainer.output_dir={tmp_path}",
            script=lightning_train,
        )
    assert stopped.value.code == 128 + number
    paths = tmp_path.rglob("last.ckpt")
    steps = [torch.load(path, weights_only=True)["global_step"] for path in paths]
    assert steps == STEPS[phase]


EVENTS = [
    ("opening data", 1, signal.SIGTERM),
    ("sanity validation", 1, signal.SIGTERM),
    ("picture", 0, 0),
]


@pytest.mark.slow
@pytest.mark.parametrize(("phase", "rank", "number"), EVENTS)
def test_one_rank_alone(tmp_path, phase, rank, number):
    """It gets a signal, or fails: all end, with its exit code. Broken by: no launch in main."""
    command = ["tests/in_phase.py", phase, str(rank), str(int(number))]
    process = start(
        tmp_path,
        "--trainer.devices=2",
        "--trainer.picture_every_n_epochs=1",
        command=command,
    )
    output = finish(process, 128 + number if number else 1)
    assert ("error: no space left on device\n" in output) == (number == 0), output
    assert (f"rank {rank} failed first" in output) == (number == 0), output
    wait_until_gone(process.pid)
