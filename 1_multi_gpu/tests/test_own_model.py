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

from src.config import CHAPTER
from src.errors import UserError
from src.report_callback import Report
from src.reproducibility import ResumableBatches
from tests.runs import call, rows, saved

BLOCKS = re.findall(
    r"```python\n(.*?)```", (CHAPTER / "README.md").read_text(), re.DOTALL
)
(MODEL,) = [block for block in BLOCKS if "class MyModule" in block]
(IMPORTS,) = [block for block in BLOCKS if "as FieldDataModule" in block]
(METHOD,) = [
    block for block in BLOCKS if "def train_dataloader" in block and block != MODEL
]


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
    with pytest.raises(
        UserError, match=r"config/config.yaml: .* for your classes.*with -c"
    ):
        call(monkeypatch, script=my_train)  # that file has the keys of our model


@pytest.fixture
def own(monkeypatch):
    """lightning_train with the own classes, as after the change of its imports."""
    monkeypatch.setattr(lightning_train, "AutoencoderModule", my_model.MyModule)
    monkeypatch.setattr(lightning_train, "FieldDataModule", my_model.MyData)


@pytest.mark.parametrize("stop", [1, 6, 9])
def test_the_sampler_lifts_out(monkeypatch, tmp_path, own, stop):
    """From any step on it goes on to the same bits. Broken by: first_batch = 0."""
    method = run(textwrap.dedent(METHOD), "method").train_dataloader
    monkeypatch.setattr(my_model.MyData, "train_dataloader", method)
    reference = train(monkeypatch, tmp_path)
    folder = reference.with_name("run_2")
    with pytest.raises(SystemExit, match="0"):
        train(monkeypatch, tmp_path, f"--trainer.max_steps={stop}")
    assert saved(folder, "last.ckpt")["global_step"] == stop
    call(monkeypatch, f"--resume={folder}", script=lightning_train)
    assert rows(folder) == rows(reference)
    weights = [saved(run, "last.ckpt")["state_dict"] for run in (folder, reference)]
    torch.testing.assert_close(*weights, rtol=0, atol=0)


def batches(
    start: int, rank: int, world_size: int, num_workers: int
) -> list[list[int]]:
    """A rank's batches in two epochs of three steps, from step ``start`` on."""
    done = []
    sampler = ResumableBatches(20, 6, 0, lambda: start + len(done), rank, world_size)
    settings = {"num_workers": num_workers, "persistent_workers": num_workers > 0}
    loader = DataLoader(range(20), batch_sampler=sampler, **settings)
    while start + len(done) < 6:
        for batch in loader:
            done.append(batch.tolist())
    return done


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("world_size", [1, 3])
def test_the_batches_after_any_step(num_workers, world_size):
    """In plain PyTorch. Broken by: no epoch in epoch_order; yield batch in ResumableBatches."""
    whole = [batches(0, rank, world_size, num_workers) for rank in range(world_size)]
    for parts in zip(*whole, strict=True):
        assert len(set(itertools.chain(*parts))) == 6  # the ranks share each batch
    assert whole[0][:3] != whole[0][3:]  # another order in the second epoch
    for start in range(6):
        rest = [
            batches(start, rank, world_size, num_workers) for rank in range(world_size)
        ]
        assert rest == [own[start:] for own in whole]


class Bare(my_model.MyModule):
    def __init__(self) -> None:
        super().__init__()

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters())
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, self.trainer.max_epochs
        )
        return [optimizer], [schedule]


class Anything(Bare):
    def __init__(self, **settings) -> None:
        super().__init__()


class BareData(my_model.MyData):
    def __init__(self) -> None:
        super().__init__()


class WithPath(Bare):
    def __init__(self, folder: Path = Path("here")) -> None:
        super().__init__()
        self.save_hyperparameters()


@pytest.mark.parametrize("module", [Bare, Anything])
def test_a_module_without_arguments_trains_and_goes_on(
    monkeypatch, tmp_path, own, module
):
    """Broken by: no plain in parse_config, after which no resume reads max_epochs."""
    monkeypatch.setattr(lightning_train, "AutoencoderModule", module)
    monkeypatch.setattr(lightning_train, "FieldDataModule", BareData)
    with pytest.raises(SystemExit, match="0"):
        train(monkeypatch, tmp_path, "--trainer.max_steps=3")
    folder = tmp_path / "output" / "run_1"
    call(monkeypatch, f"--resume={folder}", script=lightning_train)
    assert rows(folder)[-1]["step"] == "12"


def test_a_checkpoint_that_no_resume_reads_ends_the_run(monkeypatch, tmp_path, own):
    """At its first save. Broken by: no get_unsafe_globals_in_checkpoint in save_checkpoint."""
    monkeypatch.setattr(lightning_train, "AutoencoderModule", WithPath)
    with pytest.raises(
        UserError, match=r"no resume .*hyper_parameters.folder contain pathlib"
    ):
        train(monkeypatch, tmp_path)
    folder = tmp_path / "output" / "run_1"
    assert rows(folder)[-1]["step"] == "6"
    assert not list((folder / "checkpoints").iterdir())


SAMPLES = my_model.MyData().samples
SHARED = ResumableBatches(48, 8, 0, lambda: 0, rank=0, world_size=2)
WITHOUT_RANK = ResumableBatches(48, 8, 0, lambda: 0)
LOADERS = {
    "the same": DataLoader(SAMPLES, batch_size=8, shuffle=True),
    "the same, ours": DataLoader(SAMPLES, batch_sampler=WITHOUT_RANK),
    "Lightning": DataLoader(SAMPLES, 8, sampler=DistributedSampler(SAMPLES, 2, rank=0)),
    "ours": DataLoader(SAMPLES, batch_sampler=SHARED),
}


@pytest.mark.parametrize("name", LOADERS)
def test_ranks_that_would_repeat_each_other_are_refused(name):
    """Broken by: no check_samples in Report; no look at one of the two samplers; hasattr rank."""
    trainer = Mock(world_size=2, num_nodes=1, max_epochs=1, num_training_batches=6)
    trainer.num_devices = 2
    trainer.configure_mock(train_dataloader=LOADERS[name], default_root_dir=CHAPTER)
    report = Mock(spec=Report)
    refused = pytest.raises(UserError, match="same samples")
    with refused if name.startswith("the same") else nullcontext():
        Report.on_train_start(report, trainer, Mock())
