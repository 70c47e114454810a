"""Checkpoints that cannot be continued or scored: one line, and the run stays as it was."""

import pickle
import shutil
from pathlib import Path

import pytest
import torch
from src.lightning_errors import one_line_errors

from tests.lightning_runs import call_cli, call_lightning, run_cli, train_lightning


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """A run of each program, stopped after its first step."""
    output = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as monkeypatch:
        train_lightning(monkeypatch, output / "script", "--trainer.max_steps=1")
        run_cli(monkeypatch, "fit", output / "cli", "--trainer.max_steps=1")
    return {program: output / program / "run_1" for program in ("script", "cli")}


@pytest.fixture(params=["script", "cli"])
def run(request, runs, tmp_path) -> Path:
    """A copy of one of them, in a folder with the name of its program."""
    shutil.copytree(runs[request.param], tmp_path / request.param / "run_1")
    return tmp_path / request.param / "run_1"


def resume(monkeypatch: pytest.MonkeyPatch, checkpoint: Path, *arguments: str) -> int:
    """Continue a run with the program that began it."""
    folder = checkpoint.parents[1]
    if folder.parent.name == "script":
        return call_lightning(monkeypatch, f"--resume={checkpoint}", *arguments)
    config = f"--config={folder / 'config.yaml'}"
    return call_cli(monkeypatch, "fit", config, f"--ckpt_path={checkpoint}", *arguments)


def score(monkeypatch: pytest.MonkeyPatch, checkpoint: Path) -> int:
    """What a new run would say about it; it would lie beside."""
    return run_cli(monkeypatch, "test", checkpoint.parents[2], f"--ckpt_path={checkpoint}")


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("run", "argument", "expected"),
    [
        ("script", "--model.embed_dim=32", "model.embed_dim is 16 in the checkpoint, but 32 in"),
        ("script", "--optimizer.lr=0.5", "optimizer.lr is 0.004 in the checkpoint, but 0.5 in"),
        ("script", "--data.batch_size=4", "data.batch_size is 8 in the checkpoint, but 4 in"),
        ("script", "--seed_everything=5", "seed is 0 in the checkpoint, but 5 in"),
        ("script", "--trainer.max_epochs=4", "trainer.max_epochs is 3 in the checkpoint, but 4 in"),
        ("cli", "--model.embed_dim=32", "model.embed_dim is 16 in the checkpoint, but 32 in"),
        ("cli", "--optimizer.lr=0.5", "optimizer.lr is 0.004 in the checkpoint, but 0.5 in"),
    ],
    indirect=["run"],
)
def test_another_configuration(monkeypatch, run, capsys, argument, expected):
    """Refused before anything is written; without the argument the run goes on."""
    before = contents(run)
    with pytest.raises(SystemExit, match=expected) as caught, one_line_errors():
        resume(monkeypatch, run / "checkpoints" / "last.ckpt", argument)
    assert "\n" not in str(caught.value.code)
    assert contents(run) == before
    assert capsys.readouterr() == ("", "")


def test_what_may_change(monkeypatch, run):
    """By both programs."""
    checkpoint = run / "checkpoints" / "last.ckpt"
    changes = ["--data.num_workers=1", "--trainer.log_every_n_steps=2", "--trainer.max_steps=2"]
    assert resume(monkeypatch, checkpoint, *changes) == 0
    assert torch.load(checkpoint, weights_only=True)["global_step"] == 2


class Evil:
    """Creates a file when it is unpickled carelessly."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


BROKEN = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:5000]),
    "text": lambda path: path.write_text("hello\n"),
    "something else": lambda path: torch.save({"weights": torch.zeros(2)}, path),
    "code": lambda path: torch.save(
        {"pytorch-lightning_version": "2.0", "hyper_parameters": Evil(path.with_name("pwned"))},
        path,
        pickle_module=pickle,
    ),
}


@pytest.mark.parametrize(
    ("run", "use"), [("script", resume), ("script", score)], indirect=["run"], ids=["fit", "test"]
)
@pytest.mark.parametrize("what", BROKEN)
def test_broken_file(monkeypatch, run, what, use):
    """Named in one line; no code inside is run, and no run is begun."""
    checkpoint = run / "checkpoints" / "last.ckpt"
    BROKEN[what](checkpoint)
    before = contents(run)
    with pytest.raises(SystemExit, match=r"^error: .*last.ckpt.*$") as caught, one_line_errors():
        use(monkeypatch, checkpoint)
    assert "\n" not in caught.value.code
    assert contents(run) == before
    assert [path.name for path in run.parent.iterdir()] == ["run_1"]


def test_nothing_to_resume(monkeypatch, tmp_path):
    message = r"nowhere is neither the folder of a run nor a checkpoint"
    with pytest.raises(SystemExit, match=message), one_line_errors():
        call_lightning(monkeypatch, f"--resume={tmp_path / 'nowhere'}")


@pytest.mark.parametrize("subcommand", ["validate", "test", "predict"])
def test_nothing_to_score(monkeypatch, tmp_path, subcommand):
    message = rf"--ckpt_path: there is no run .* in {tmp_path}"
    with pytest.raises(SystemExit, match=message), one_line_errors():
        run_cli(monkeypatch, subcommand, tmp_path)
    assert not list(tmp_path.iterdir())
