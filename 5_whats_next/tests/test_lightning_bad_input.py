"""Bad input to both Lightning programs: one line, an exit code, no run, and no second process."""

import re
import runpy
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from src.config import CHAPTER
from src.lightning_errors import one_line_errors

from tests.lightning_runs import run_cli, train_lightning

MISSING = "mps" if torch.cuda.is_available() else "cuda"
BAD_INPUT = {
    "more devices": (["--trainer.devices=64"], "trainer.devices: 64 .*are not here; allowed: 1 to"),
    "no device": (["--trainer.devices=0"], "trainer.*devices.*0"),
    "all devices": (["--trainer.devices=-1"], "trainer.*devices.*(-1|> 0)"),
    "devices in words": (["--trainer.devices=two"], "trainer.*devices.*int"),
    "no machine": (["--trainer.num_nodes=0"], "num_nodes.*0"),
    "shared batch": (
        ["--data.batch_size=7", "--trainer.devices=2"],
        "data.batch_size: 7 .*shared by 2 devices; allowed: multiples of 2",
    ),
    "strategy": (["--trainer.strategy=dpp"], "strategy.*dpp.*auto, ddp"),
    "no such device": ([f"--trainer.accelerator={MISSING}"], f"(?i){MISSING}.*cpu"),
    "unknown accelerator": (["--trainer.accelerator=abacus"], "accelerator.*abacus"),
    "workers": (["--data.num_workers=-1"], "data.num_workers: -1 .*allowed: 0 and more"),
    "betas": (["--optimizer.betas=[0.9,1.5]"], r"optimizer.betas: \[0.9, 1.5\] .*allowed"),
    "no epoch": (["--trainer.max_epochs=0"], "trainer.max_epochs: 0 .*allowed: 1"),
    "no step": (["--trainer.max_steps=0"], "trainer.max_steps: 0 .*allowed: -1"),
    "clip": (["--trainer.gradient_clip_val=0"], "trainer.gradient_clip_val: 0.*allowed: above 0"),
}
# Where LightningCLI takes half a second to come to the same line, the script is enough.
SCRIPT = {
    "unknown key": (["--model.mask_ration=0.5"], "mask_ration=0.5; allowed: .*model.mask_ratio"),
    "wrong type": (["--data.batch_size=many"], "data.batch_size.*int.*many"),
    "no such file": (["--config=absent.yaml"], "absent.yaml"),
    "dataset's key": (["--data.dataset.windw=[1]"], "'windw' .*DummyDataset: sample_shape"),
    "trainer's key": (["--trainer.gpus=2"], "trainer.gpus=2; allowed: .*trainer.devices"),
    "patch size": (["--model.patch_size=[3,4,4]"], r"model.patch_size: \[3, 4, 4\] .*allowed"),
    "mask ratio": (["--model.mask_ratio=1.7"], "model.mask_ratio: 1.7 .*allowed: between 0 and 1"),
    "batch size": (["--data.batch_size=35"], "data.batch_size: 35 .*allowed: 1 to 34"),
    "no batch": (["--data.batch_size=0"], "data.batch_size: 0 .*allowed"),
    "learning rate": (["--optimizer.lr=-1"], "optimizer.lr: -1"),
}


def script(monkeypatch: pytest.MonkeyPatch, output: Path, *arguments: str) -> int:
    return train_lightning(monkeypatch, output, *arguments)


def cli(monkeypatch: pytest.MonkeyPatch, output: Path, *arguments: str) -> int:
    return run_cli(monkeypatch, "fit", output, *arguments)


both = pytest.mark.parametrize("program", [script, cli])


@pytest.fixture(autouse=True)
def no_other_process(monkeypatch):
    """What is wrong is found before Lightning starts another process."""

    def start(*_: object) -> None:
        raise AssertionError("started another process")

    launcher = "lightning.pytorch.strategies.launchers.subprocess_script._SubprocessScriptLauncher"
    monkeypatch.setattr(f"{launcher}._call_children_scripts", start)


def refused(program: Callable[..., int], *arguments) -> str:
    """The one line that the program ends with."""
    with pytest.raises(SystemExit) as caught, one_line_errors():
        program(*arguments)
    message = str(caught.value.code)
    assert message.startswith("error: ")
    assert "\n" not in message
    return message


CASES = [
    pytest.param(program, *case, id=f"{name}-{program.__name__}")
    for program, cases in ((script, BAD_INPUT | SCRIPT), (cli, BAD_INPUT))
    for name, case in cases.items()
]


@pytest.mark.parametrize(("program", "arguments", "expected"), CASES)
def test_bad_input(monkeypatch, tmp_path, capfd, program, arguments, expected):
    """One line that names the key and says what is allowed; before it nothing is printed."""
    message = refused(program, monkeypatch, tmp_path / "output", *arguments)
    assert re.search(expected, message), message
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.glob("output/run_*"))


@pytest.fixture
def used_port() -> Iterator[str]:
    with socket.socket() as other_program:
        other_program.bind(("127.0.0.1", 0))
        other_program.listen()
        yield str(other_program.getsockname()[1])


@both
@pytest.mark.parametrize("port", ["used", "here", "99999"])
def test_port_of_the_ranks(monkeypatch, tmp_path, used_port, program, port):
    """In use, not a number, too large."""
    port = port.replace("used", used_port)
    monkeypatch.setenv("MASTER_PORT", port)
    two = ["--trainer.devices=2", "--trainer.strategy=ddp"]
    message = refused(program, monkeypatch, tmp_path, *two)
    assert message.startswith(f"error: MASTER_PORT: cannot listen at port {port}")
    assert "set another, or unset it" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("program", "name", "key"),
    [(script, "cli_config", "trainer.deterministic"), (cli, "config", "trainer.picture_every")],
)
def test_config_of_the_other_program(monkeypatch, tmp_path, program, name, key):
    config = f"--config={CHAPTER / 'config' / name}.yaml"
    assert key in refused(program, monkeypatch, tmp_path, config)
    assert not list(tmp_path.iterdir())


def test_accumulated_gradients(monkeypatch, tmp_path):
    """LightningCLI offers what would change the global batch; only the script leaves it out."""
    message = refused(cli, monkeypatch, tmp_path, "--trainer.accumulate_grad_batches=2")
    assert "trainer.accumulate_grad_batches: 2 changes the global batch; allowed: 1" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["lightning_train.py", "lightning_trainer.py"])
def test_exit_code(monkeypatch, name):
    """As a script: Python prints the text of SystemExit on stderr and exits with code 1."""
    subcommand = ["fit"] if name == "lightning_trainer.py" else []
    monkeypatch.setattr(sys, "argv", [name, *subcommand, "--trainer.devices=64"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(CHAPTER / name), run_name="__main__")
    assert str(caught.value.code).startswith("error: trainer.devices: 64")
