"""Checkpoints: whole or not there, and refused when they do not fit."""

import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from src.checkpoint import TrainingState, differences, read_checkpoint, save_atomic
from src.config import CHAPTER
from src.errors import UserError
from src.optim import make_optimizer


def new_state(width: int = 4, lr: float = 0.1, **config) -> TrainingState:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, width)
    optimizer, scheduler = make_optimizer(model, total_steps=10, lr=lr)
    return TrainingState(model, optimizer, scheduler, config)


def step(state: TrainingState) -> None:
    state.model(torch.ones(3)).sum().backward()
    state.optimizer.step()
    state.scheduler.step()
    state.optimizer.zero_grad()
    state.step += 1


def test_round_trip_is_exact(tmp_path):
    """Two steps, save, load into a fresh state, two more: the same bits as four steps."""
    state, straight = new_state(), new_state()
    for _ in range(2):
        step(state)
    state.best_loss, state.run_id = 0.25, "abc"
    state.save(tmp_path / "last.pt")
    torch.manual_seed(99)
    resumed = new_state()
    resumed.load(tmp_path / "last.pt")
    assert (resumed.step, resumed.best_loss, resumed.run_id) == (2, 0.25, "abc")
    for _ in range(2):
        step(resumed)
    for _ in range(4):
        step(straight)
    assert resumed.model.weight.equal(straight.model.weight)
    assert resumed.scheduler.get_last_lr() == straight.scheduler.get_last_lr()


def test_no_pickled_code_is_run(tmp_path):
    """The file creates another file when it is unpickled carelessly."""

    class Evil:
        def __reduce__(self):
            return Path.touch, (tmp_path / "pwned",)

    torch.save({"model": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(UserError, match=r"evil.pt is truncated or not a checkpoint"):
        read_checkpoint(tmp_path / "evil.pt")
    assert not (tmp_path / "pwned").exists()


def test_missing(tmp_path):
    with pytest.raises(UserError, match="there is no checkpoint"):
        read_checkpoint(tmp_path / "absent.pt")


@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, 0.99])
def test_truncated(tmp_path, keep):
    path = tmp_path / "last.pt"
    new_state().save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    with pytest.raises(UserError, match=r"last.pt is truncated or not a checkpoint") as caught:
        read_checkpoint(path)
    assert "\n" not in str(caught.value)


def test_something_else(tmp_path):
    torch.save({"weights": torch.zeros(2)}, tmp_path / "other.pt")
    with pytest.raises(UserError, match="is not a checkpoint of this train script"):
        read_checkpoint(tmp_path / "other.pt")


def test_another_shape(tmp_path):
    new_state(width=4).save(tmp_path / "last.pt")
    with pytest.raises(UserError, match=r"does not fit the configured model: .*4.*5"):
        new_state(width=5).load(tmp_path / "last.pt")


def test_another_configuration(tmp_path):
    new_state(optimizer={"lr": 0.1}).save(tmp_path / "last.pt")
    with pytest.raises(UserError, match=r"optimizer.lr is 0.1 in .*last.pt, but 0.2 in this"):
        new_state(optimizer={"lr": 0.2}).load(tmp_path / "last.pt")


def test_free_keys_may_change(tmp_path):
    new_state(data={"num_workers": 0}).save(tmp_path / "last.pt")
    new_state(data={"num_workers": 2}).load(tmp_path / "last.pt")


def test_differences():
    a = {"x": {"y": 1, "z": [1, 2]}, "only": None}
    assert list(differences(a, {"x": {"y": 1, "z": [1, 3]}})) == [("x.z", ([1, 2], [1, 3]))]


def test_full_disk_keeps_the_old_checkpoint(tmp_path):
    """A limit on file sizes makes writing fail half-way, as a full disk does."""
    path = tmp_path / "last.pt"
    save_atomic({"weights": torch.zeros(1000)}, path)
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
    try:
        with pytest.raises(UserError, match=r"cannot write .*its last version is intact"):
            save_atomic({"weights": torch.ones(1000)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_kill_while_saving(tmp_path):
    """Saved over and over, killed at a random moment: the file is always whole."""
    path = tmp_path / "last.pt"
    program = f"""
        import itertools, sys, torch
        sys.path.insert(0, {str(CHAPTER)!r})
        from pathlib import Path
        from src.checkpoint import save_atomic
        for number in itertools.count():
            state = {{"number": torch.full((200_000,), number)}}
            save_atomic(state, Path({str(path)!r}))
            print(number, flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    )
    try:
        for line in process.stdout:
            if int(line) == 20:
                break
    finally:
        process.kill()
        process.communicate()
    numbers = torch.load(path, weights_only=True)["number"]
    assert numbers.unique().numel() == 1
    assert numbers[0] >= 20
