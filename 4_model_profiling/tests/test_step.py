"""The step waits for nothing, nothing broken is saved, and no rung changes what is learned."""

import copy
import json
import subprocess
import sys

import lightning_train
import lightning_trainer
import pytest
import step_ladder
import torch
from instruments import Training, make_parser

from src.model.compiled import compile_forward
from src.model.lightning_module import AutoencoderModule
from src.model.micro_batches import split
from src.model.pytorch_model import MaskedAutoencoder
from src.run.config import CHAPTER
from src.run.errors import UserError
from src.run.step_timer import StepTimer
from tests.runs import TINY, TWO_RANKS, call, rows, saved, start, train
from tests.waits import Waits

OCEAN = f"-c={CHAPTER}/tests/ocean.yaml"


# All of torch.compile but the generated code, which takes most of the time, and which the test of
# the ladder has.
TWO_COMPILED_RANKS = """import functools, sys
from src.run.launch import has_rank, launch
has_rank() or sys.exit(launch(2))
import torch
torch.compile = functools.partial(torch.compile, backend="aot_eager")
import lightning_train
sys.exit(lightning_train.main())"""


def curve(folder):
    return torch.tensor(
        [float(row["train_loss"]) for row in rows(folder) if row["train_loss"]]
    )


def test_a_step_waits_for_nothing(monkeypatch, tmp_path):
    """Between two looks; to raw PyTorch's bits. Broken by: prog_bar=True; no zero_grad."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    looks = "--trainer.log_every_n_steps=4"
    raw = tmp_path / "raw" / "run_1"
    command = [sys.executable, "pytorch_train.py", TINY, looks]
    command.append(f"--trainer.output_dir={raw.parent}")
    subprocess.run(command, cwd=CHAPTER.parent / "0_setup", check=True)
    with Waits() as waits:
        folder = train(monkeypatch, tmp_path / "lightning", looks)
    assert rows(folder) == rows(raw)
    assert waits.between_looks(4) == []
    assert len(waits.places) > 10  # it does see those at the looks


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_step_waits_for_nothing_on_a_gpu(monkeypatch, tmp_path):
    """PyTorch raises for each call that would wait, but in the steps with a look."""

    def strict(module, *_):
        is_look = (module.global_step + 1) % 4 == 0 or module.global_step == 0
        torch.cuda.set_sync_debug_mode("default" if is_look else "error")

    monkeypatch.setattr(AutoencoderModule, "on_train_batch_start", strict)
    settings = ["--trainer.accelerator=cuda", "--trainer.log_every_n_steps=4"]
    try:
        train(monkeypatch, tmp_path, *settings, script=lightning_train)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_command_line_does_not_fill_memory_either(monkeypatch):
    """Broken by: no fill_uninitialized_memory in lightning_trainer.main."""
    setting = "torch.utils.deterministic.fill_uninitialized_memory"
    monkeypatch.setattr(setting, True)
    with pytest.raises(SystemExit, match="0"):
        call(monkeypatch, "--help", script=lightning_trainer)
    assert not torch.utils.deterministic.fill_uninitialized_memory


@pytest.mark.parametrize("every", [1, 0])
def test_nothing_broken_is_saved(monkeypatch, tmp_path, every):
    """Broken by: no check_finite in on_save_checkpoint; none in the clipping."""
    settings = ["--optimizer.lr=1e30", f"--trainer.checkpoint_every_n_steps={every}"]
    looks = "--trainer.log_every_n_steps=3"
    with pytest.raises(UserError, match=r"step \d+: the gradient is not finite"):
        train(monkeypatch, tmp_path, *settings, looks, script=lightning_train)
    assert not any("nan" in row.values() for row in rows(tmp_path / "run_1"))
    if every:
        weights = saved(tmp_path / "run_1")["state_dict"].values()
        assert all(weight.isfinite().all() for weight in weights)


@pytest.mark.slow
def test_parts_of_a_batch_give_the_curve_of_the_whole(monkeypatch, tmp_path):
    """With land; two ranks, too, which do not wait either, and stop when one gets a signal.

    Broken by: the count of a part; Lightning's own question to the ranks; no all_reduce (it hangs).
    """
    settings = [OCEAN, "--trainer.max_epochs=1"]
    whole = curve(
        train(monkeypatch, tmp_path / "whole", *settings, script=lightning_train)
    )
    parts = [*settings, "--model.micro_batches=3"]
    three = curve(
        train(monkeypatch, tmp_path / "three", *parts, script=lightning_train)
    )
    torch.testing.assert_close(three, whole, rtol=1e-5, atol=0)
    with pytest.raises(UserError, match="3 parts of 2 samples"):
        split(torch.zeros(2, 1), torch.zeros(2), 3)
    ranks = [
        "--trainer.devices=2",
        "--trainer.strategy=ddp",
        "--trainer.log_every_n_steps=3",
    ]
    command = [*TWO_RANKS, "tests/waits.py"]
    process = start(tmp_path, *parts, *ranks, command=command)
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 143, output
    torch.testing.assert_close(
        curve(tmp_path / "run_1"), whole[2:30:3], rtol=1e-5, atol=0
    )
    assert saved(tmp_path / "run_1")["global_step"] == 30


@pytest.mark.slow
def test_two_compiled_ranks_give_the_curve_of_one(monkeypatch, tmp_path):
    """DDP and torch.compile together. Broken by: no world_size in the loss of training_step."""
    settings = [
        OCEAN,
        "--trainer.max_epochs=1",
        "--model.depth=1",
        "--model.decoder_depth=1",
    ]
    one = curve(train(monkeypatch, tmp_path / "one", *settings, script=lightning_train))
    ranks = ["--trainer.devices=2", "--trainer.strategy=ddp", "--model.compile=true"]
    process = start(tmp_path, *settings, *ranks, command=["-c", TWO_COMPILED_RANKS])
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 0, output
    torch.testing.assert_close(curve(tmp_path / "run_1"), one, rtol=1e-4, atol=0)


def test_a_copy_of_a_compiled_model_has_its_own_weights(monkeypatch):
    """As an average of the weights needs. Broken by: a closure in place of MethodType."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    model = MaskedAutoencoder((2, 4, 8, 8), patch_size=(2, 4, 4), embed_dim=16)
    compile_forward(model)
    average = copy.deepcopy(model)
    torch.nn.init.zeros_(average.decoder.head.weight)
    x, index = torch.randn(1, 2, 4, 8, 8), torch.tensor([0])
    for epoch in (None, 0):
        error = model(x, index, epoch).squared_error
        assert average(x, index, epoch).squared_error != error


@pytest.mark.slow
def test_no_rung_changes_the_losses(monkeypatch, tmp_path):
    """Over 50 steps, compiled too. Broken by: another seed of masks_one_by_one; half its ratio."""
    data = ["--data.dataset=OceanDataset", "--data.dataset.train_stride=[3,2,20]"]
    sizes = [
        "--data.batch_size=8",
        "--model.embed_dim=16",
        "--model.decoder_embed_dim=16",
    ]
    options = [
        "--repeats=1",
        "--trainer.accelerator=cpu",
        f"--save-dir={tmp_path}/ladder",
    ]
    first, *others = step_ladder.RUNGS.items()
    rungs = dict(
        [first, ("the others", [word for _, words in others for word in words])]
    )
    monkeypatch.setattr(step_ladder, "RUNGS", rungs)
    monkeypatch.setattr(step_ladder, "VARIANTS", {})
    call(monkeypatch, *options, *data, *sizes, script=step_ladder)
    table = json.loads((tmp_path / "ladder" / "ladder.json").read_text())["rows"]
    assert len(table) == 2
    assert all(row["loss"] < 1e-4 for row in table.values())


def test_the_ladder_reaches_optimizer_and_seed():
    """Broken by: no `optimizer` or `seed` in SlowModule's signature: no rung would have them.

    And each of the micro-batches counts as backward. Broken by: no profile in backward_each.
    """
    settings = [
        "--model-class=slow_module.SlowModule",
        "--optimizer.fused=true",
        "--seed_everything=3",
        "--model.micro_batches=3",
        OCEAN,
    ]
    options, overrides = make_parser("").parse_known_args(settings)
    training = Training(options, overrides, max_steps=1)
    assert training.module.hparams.optimizer["fused"]
    assert training.module.hparams.seed == 3
    timer = StepTimer("cpu")
    training.fit(timer)
    assert [part for part, _ in timer.steps[0]].count("backward") == 3
