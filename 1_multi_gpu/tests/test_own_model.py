"""The README's own model and data run with lightning_train.py by two changed imports."""

import itertools
import re
import sys
import textwrap
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import lightning_train
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from src.callbacks.report_callback import Report
from src.run.config import CHAPTER
from src.run.errors import UserError
from src.run.reproducibility import ResumableBatches
from tests.runs import call, rows, saved

BLOCKS = re.findall(
    r"```python\n(.*?)```", (CHAPTER / "README.md").read_text(), re.DOTALL
)
(MODEL,) = [block for block in BLOCKS if "class MyModule" in block]
(IMPORTS,) = [block for block in BLOCKS if "as FieldDataModule" in block]
(METHOD,) = [
    block for block in BLOCKS if "def train_dataloader" in block and block != MODEL
]
(CHECK,) = [block for block in BLOCKS if "def samples_of_steps" in block]
(SAMPLER,) = [block for block in BLOCKS if "ResumableBatches, Res" in block]


def run(code: str, name: str) -> ModuleType:
    """A module with this code, which others can import."""
    module = sys.modules[name] = ModuleType(name)
    exec(code, vars(module))
    return module


my_model = run(MODEL, "my_model")


def train(monkeypatch, folder: Path, *arguments: str, script=lightning_train) -> Path:
    """A run of the own model: 12 steps in two epochs."""
    (folder / "my.yaml").write_text("{trainer: {log_every_n_steps: 1, max_epochs: 2}}")
    settings = [f"-c={folder}/my.yaml", f"--trainer.output_dir={folder}/output"]
    settings += ["--trainer.wandb=disabled", "--trainer.accelerator=cpu"]
    call(monkeypatch, *settings, *arguments, script=script)
    return folder / "output" / "run_1"


def test_two_imports_are_all_that_changes(monkeypatch, tmp_path):
    """Broken by: no isinstance in Report; no signature in lightning_train.build."""
    script = (CHAPTER / "lightning_train.py").read_text()
    script, number = re.subn(r"from src.*import \w+Module\n", "", script)
    assert number == len(IMPORTS.splitlines()) == 2
    my_train = run(
        script.replace("import inspect\n", f"import inspect\n{IMPORTS}"), "my_train"
    )
    table = rows(train(monkeypatch, tmp_path, "--model.width=6", script=my_train))
    assert [row["step"] for row in table if row["train_loss"]] == [
        str(n) for n in range(1, 13)
    ]
    assert [row["step"] for row in table if row["val_loss"]] == ["6", "12"]


def batches(start: int, rank: int) -> list[list[int]]:
    """A rank's batches in two epochs of three steps, from step ``start`` on."""
    done = []
    sampler = ResumableBatches(20, 6, 0, lambda: start + len(done), rank, 3)
    workers = {"num_workers": start % 2, "persistent_workers": start % 2 > 0}
    loader = DataLoader(range(20), batch_sampler=sampler, **workers)
    while start + len(done) < 6:
        for batch in loader:
            done.append(batch.tolist())
    return done


def test_the_batches_after_any_step():
    """In plain PyTorch. Broken by: no epoch in epoch_order; yield batch in ResumableBatches."""
    whole = [batches(0, rank) for rank in range(3)]
    for parts in zip(*whole, strict=True):
        assert len(set(itertools.chain(*parts))) == 6  # the ranks share each batch
    assert whole[0][:3] != whole[0][3:]  # another order in the second epoch
    for start in range(1, 6):
        for rank in range(3):
            assert batches(start, rank) == whole[rank][start:]


def test_any_number_of_ranks_trains_on_the_same_samples():
    """By the README's own check. Broken by: another slice in ResumableBatches.__iter__."""
    run(SAMPLER + CHECK, "check")


class Bare(my_model.MyModule):
    def __init__(self) -> None:
        super().__init__()

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters())
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, self.trainer.max_epochs
        )
        return [optimizer], [schedule]


class BareData(my_model.MyData):
    def __init__(self) -> None:
        super().__init__()


def test_the_sampler_lifts_out(monkeypatch, tmp_path):
    """Into classes without arguments, which go on inside an epoch to the same bits.

    Broken by: first_batch = 0; no plain in parse_config, after which no resume reads max_epochs.
    """
    method = run(SAMPLER + textwrap.dedent(METHOD), "method").train_dataloader
    monkeypatch.setattr(BareData, "train_dataloader", method)
    monkeypatch.setattr(lightning_train, "AutoencoderModule", Bare)
    monkeypatch.setattr(lightning_train, "FieldDataModule", BareData)
    reference = train(monkeypatch, tmp_path)
    with pytest.raises(SystemExit, match="0"):
        train(monkeypatch, tmp_path, "--trainer.max_steps=9")
    folder = reference.with_name("run_2")
    assert saved(folder, "last.ckpt")["global_step"] == 9
    call(monkeypatch, f"--resume={folder}", script=lightning_train)
    assert rows(folder) == rows(reference)
    weights = [saved(run, "last.ckpt")["state_dict"] for run in (folder, reference)]
    torch.testing.assert_close(*weights, rtol=0, atol=0)


def test_ranks_that_would_repeat_each_other_are_refused():
    """Broken by: no check_samples in Report; no look at one of the two samplers; hasattr rank."""
    samples = my_model.MyData().samples
    ours = [48, 8, 0, lambda: 0]
    loaders = [
        DataLoader(samples, 8, sampler=DistributedSampler(samples, 2, rank=0)),
        DataLoader(samples, batch_sampler=ResumableBatches(*ours, 0, 2)),
        DataLoader(samples, 8, shuffle=True),
        DataLoader(samples, batch_sampler=ResumableBatches(*ours)),
    ]
    for number, loader in enumerate(loaders):
        trainer = Mock(
            world_size=2, num_nodes=1, num_devices=2, train_dataloader=loader
        )
        refused = pytest.raises(UserError, match="same samples")
        with refused if number > 1 else nullcontext():
            Report.on_train_start(Mock(spec=Report), trainer, Mock())
