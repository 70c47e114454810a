"""The guide's own model and data run with lightning_train.py by two changed imports."""

import re
from pathlib import Path
from types import ModuleType

import lightning_train
import pytest

from src.data.lightning_datamodule import FieldDataModule
from src.run.config import CHAPTER
from tests.runs import assert_same_run, call, finish, rows, start

GUIDE = (CHAPTER.parent / "appendix" / "guide" / "own_model.md").read_text()
MODEL, IMPORTS, OURS, SAMPLER = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
SETTINGS = "trainer: {max_epochs: 2, log_every_n_steps: 1, wandb: disabled}"


def train(
    monkeypatch, output: Path, *arguments: str, model: str = "MyModule", data: str
) -> Path:
    """A run of the guide's classes: 12 steps in two epochs."""
    guide = ModuleType("guide")
    exec(MODEL + OURS + SAMPLER, vars(guide))
    guide.FieldDataModule = FieldDataModule
    classes = (
        getattr(guide, model),
        getattr(guide, data),
        lightning_train.LightningSettings,
    )
    monkeypatch.setattr(lightning_train, "CLASSES", classes)
    settings = [f"-c={{{SETTINGS}}}", f"--trainer.output_dir={output}"]
    call(monkeypatch, *settings, *arguments, script=lightning_train)
    return output / "run_1"


@pytest.mark.slow
def test_two_imports_are_all_that_changes(tmp_path):
    """On two ranks, which get different samples. Broken by: no isinstance in Report."""
    script = (CHAPTER / "lightning_train.py").read_text()
    script, number = re.subn(r"from src.*import \w+Module\n", "", script)
    assert number == len(IMPORTS.splitlines()) == 2
    (tmp_path / "my_model.py").write_text(MODEL)
    (tmp_path / "train.py").write_text(
        script.replace("import sys\n", f"{IMPORTS}import sys\n")
    )
    words = [
        f"-c={{{SETTINGS}}}",
        f"--trainer.output_dir={tmp_path}",
        "--model.width=6",
    ]
    devices = ["--trainer.devices=2", "--trainer.accelerator=cpu"]
    path = f"import sys; sys.path[:0] = ['{CHAPTER}', '{tmp_path}']; import runpy; "
    program = f"{path}runpy.run_path('{tmp_path}/train.py', run_name='__main__')"
    finish(start("-c", program, *words, *devices))
    table = rows(tmp_path / "run_1")
    steps = [row["step"] for row in table if row["train_loss"]]
    assert steps == [
        str(number) for number in range(1, 7)
    ]  # 3 in an epoch, for each rank


def test_a_module_on_our_data(monkeypatch, tmp_path):
    """Which has land. Broken by: no nan_to_num in the guide's LastMonth."""
    words = {"model": "LastMonth", "data": "FieldDataModule"}
    with pytest.raises(SystemExit, match="0"):
        train(monkeypatch, tmp_path, "--trainer.max_steps=3", **words)
    assert rows(tmp_path / "run_1")[-1]["step"] == "3"


def test_the_sampler_lifts_out(monkeypatch, tmp_path):
    """It goes on inside an epoch to the same bits. Broken by: first_batch = 0."""
    reference = train(monkeypatch, tmp_path / "a", data="MyResumableData")
    with pytest.raises(SystemExit, match="0"):
        train(
            monkeypatch, tmp_path / "b", "--trainer.max_steps=9", data="MyResumableData"
        )
    folder = tmp_path / "b" / "run_1"
    call(monkeypatch, f"--resume={folder}", script=lightning_train)
    assert_same_run(folder, reference)
