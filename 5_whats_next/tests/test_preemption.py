"""SIGTERM: to one process, to the group, to any rank, at any moment. Exit code 143 and no hang."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from src.checkpoint_files import newest_intact
from src.config import CHAPTER
from src.lightning_callbacks import Stopped
from src.patient_interrupt import INTERRUPT
from src.preemption import Preemption

from tests.lightning_runs import TWO, assert_same_lightning_run, call_lightning, train_lightning
from tests.runs import TINY, wait_until_gone

pytestmark = pytest.mark.slow
LIMIT = 20.0  # seconds from the signal to the end, at most
SCRIPT = CHAPTER / "tests" / "preempted_run.py"
STEP = 6  # where "training", "saving" and "waiting" stop; the validation is that of step 8


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Another number of validation samples, so that the reader knows which ones they are."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        folder = tmp_path_factory.mktemp("reference")
        assert train_lightning(monkeypatch, folder, "--data.dataset.num_val_samples=33") == 0
    return folder / "run_1"


def start(
    tmp_path: Path, moment: str, *arguments: str, launcher: tuple[str, ...] = ()
) -> subprocess.Popen:
    moments = tmp_path / "moments"
    moments.mkdir()
    command = [sys.executable, *launcher, str(SCRIPT), *TINY, *arguments]
    command += [f"--trainer.output_dir={tmp_path}"]
    command += ["--trainer.run_name=run", "--trainer.checkpoint_every_n_steps=1"]
    settings = {"WANDB_MODE": "disabled", "MOMENT": moment, "MOMENT_FOLDER": str(moments)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env=os.environ | settings, start_new_session=True, **pipes)


def wait_for_moment(process: subprocess.Popen, folder: Path, names: list[str]) -> list[int]:
    """Process ids of the ranks, as soon as all are where the signal shall find them."""
    while not all(any(folder.glob(name)) for name in names):
        if process.poll() is not None:
            pytest.fail(f"ended too early:\n{process.communicate()[0]}")
        time.sleep(0.02)  # the test waits for files of other processes
    return [int(next(folder.glob(name)).read_text()) for name in names]


MATRIX = [
    (moment, target, ranks, workers)
    for moment in ("training", "validation", "saving", "waiting")
    for ranks in (1, 2)
    for target in (["process", "group"] if ranks == 1 else ["process", "group", "rank 1"])
    for workers in (0, 2)
]
FULL = os.environ.get("FULL_MATRIX")  # the others: see README.md
SHORT = {
    ("training", "rank 1", 2, 0),
    ("validation", "group", 1, 0),
    ("saving", "rank 1", 2, 0),  # rank 1 waits in a collective, outside of Python
    ("waiting", "process", 1, 0),
    ("waiting", "group", 1, 2),
}


@pytest.mark.parametrize(
    ("moment", "target", "ranks", "workers"),
    [case for case in MATRIX if FULL or case in SHORT],
)
def test_sigterm(monkeypatch, tmp_path, reference, moment, target, ranks, workers):
    settings = [
        "--data.dataset.num_val_samples=33",
        f"--data.num_workers={workers}",
        *(TWO if ranks == 2 else []),
    ]
    process = start(tmp_path, moment, *settings)
    names = [str(rank) for rank in range(ranks)]
    if moment == "waiting":
        names = ["reader-*"]
    elif moment == "saving":  # rank 0 alone writes
        names = ["0"]
    found = wait_for_moment(process, tmp_path / "moments", names)
    sent = time.monotonic()
    if target == "group":
        os.killpg(process.pid, signal.SIGTERM)
    elif target == "rank 1":
        other = found[1] if len(found) > 1 else rank_one(process)
        os.kill(other, signal.SIGTERM)
    else:
        process.terminate()
    try:
        output = process.communicate(timeout=60)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"hangs:\n{process.communicate()[0]}")
    took = time.monotonic() - sent
    assert process.returncode == 128 + signal.SIGTERM, output
    assert took < LIMIT, output
    assert "Traceback" not in output
    wait_until_gone(process.pid)
    _, step, damaged = newest_intact(tmp_path / "run" / "checkpoints")
    assert not damaged
    # Workers are ahead: one of them waits for step 6 before the training comes to it.
    waits = range(3, 7) if workers else (6,)
    expected = {"training": (7,), "validation": (8,), "saving": (6, 7), "waiting": waits}
    assert step in expected[moment]
    if ranks == 1:  # the same bits; two ranks add in another order than one
        assert call_lightning(monkeypatch, f"--resume={tmp_path / 'run'}") == 0
        assert_same_lightning_run(reference, tmp_path / "run")


def test_signal_after_the_last_step(tmp_path):
    """The training ends, and so does the run: with the signal's exit code, and nothing else."""
    process = start(tmp_path, "last validation")
    wait_for_moment(process, tmp_path / "moments", ["0"])
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 128 + signal.SIGTERM, output
    assert "stopped after step 12; continue with:" in output
    assert "error" not in output
    assert newest_intact(tmp_path / "run" / "checkpoints")[1:] == (12, [])


def test_ended_twice():
    """At the end of the training, and for an error after it; other files keep their numbers."""
    with INTERRUPT:
        number = INTERRUPT.pipe
    other = os.open(os.devnull, os.O_WRONLY)
    os.dup2(other, number)  # as a file that is opened later might have it
    try:
        INTERRUPT.__exit__()
        assert os.write(number, b"x") == 1
    finally:
        for descriptor in {other, number}:
            os.close(descriptor)


@pytest.mark.parametrize("target", ["torchrun", "rank 1"] if FULL else ["torchrun"])
def test_sigterm_under_torchrun(tmp_path, target):
    """Whoever gets it, both ranks save and end; torchrun waits for them."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    process = start(tmp_path, "training", *TWO, launcher=launcher)
    found = wait_for_moment(process, tmp_path / "moments", ["0", "1"])
    sent = time.monotonic()
    os.kill(process.pid if target == "torchrun" else found[1], signal.SIGTERM)
    try:
        output = process.communicate(timeout=60)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"hangs:\n{process.communicate()[0]}")
    assert time.monotonic() - sent < LIMIT, output
    wait_until_gone(process.pid)
    assert process.returncode == 1  # torchrun's own, whatever its ranks have said
    assert "stopped after step 7; continue with:" in output
    assert ("exitcode  : 143" if target == "rank 1" else "got signal: 15") in output
    assert newest_intact(tmp_path / "run" / "checkpoints")[1:] == (7, [])


def test_a_rank_that_the_others_tell_hurries_too():
    """It has got no signal itself; without this it would wait for its loader's workers."""
    trainer = SimpleNamespace(global_step=5, log_dir="run")
    with INTERRUPT:
        INTERRUPT.signal_number = 0
        with pytest.raises(Stopped):
            Preemption().stop(trainer)
        assert INTERRUPT.signal_number == signal.SIGTERM
        INTERRUPT.signal_number = 0


def rank_one(process: subprocess.Popen) -> int:
    """The process that the launcher has started."""
    import psutil

    children = psutil.Process(process.pid).children()
    return next(c.pid for c in children if c.environ().get("LOCAL_RANK") == "1")


def test_a_finished_run_gives_the_signals_back(monkeypatch, tmp_path, reference):
    """It only reports again: no step begins, and no training ends."""
    shutil.copytree(reference, tmp_path / "run_1")
    before = signal.getsignal(signal.SIGTERM)
    words = [f"--resume={tmp_path / 'run_1'}", f"--trainer.output_dir={tmp_path}"]
    assert call_lightning(monkeypatch, *words) == 0
    assert signal.getsignal(signal.SIGTERM) == before
    assert INTERRUPT.pipe == -1
