"""The README's own model and data run with lightning_train.py by two changed imports."""

import importlib
import re

import pytest
from src.config import CHAPTER

from tests.runs import call, rows, saved


def test_an_own_model_runs_stops_and_goes_on(monkeypatch, tmp_path):
    """Broken by: no isinstance in Report.on_train_end; no signature in lightning_train.build."""
    texts = (
        (CHAPTER / "README.md").read_text(),
        (CHAPTER / "lightning_train.py").read_text(),
    )
    model, imports = (
        block.partition("```")[0] for block in texts[0].split("```python\n")[2:]
    )
    script, number = re.subn(r"from src.*import \w+Module\n", "", texts[1])
    assert number == len(imports.splitlines()) == 2
    (tmp_path / "my_model.py").write_text(model)
    (tmp_path / "my_train.py").write_text(
        script.replace("import inspect\n", f"import inspect\n{imports}")
    )
    monkeypatch.syspath_prepend(tmp_path)
    my_train = importlib.import_module("my_train")
    (tmp_path / "my.yaml").write_text(
        "{model: {width: 6}, trainer: {log_every_n_steps: 1}}"
    )
    settings = [
        "--trainer.max_epochs=2",
        "--trainer.wandb=disabled",
        "--trainer.accelerator=cpu",
    ]
    settings += [f"-c={tmp_path}/my.yaml", f"--trainer.output_dir={tmp_path}"]
    with pytest.raises(SystemExit, match="0"):
        call(monkeypatch, *settings, "--trainer.max_steps=1", script=my_train)
    assert saved(tmp_path / "run_1", "last.ckpt")["global_step"] == 1
    call(monkeypatch, f"--resume={tmp_path}/run_1", script=my_train)
    table = rows(tmp_path / "run_1")
    assert [row["step"] for row in table if row["train_loss"]] == [
        str(n) for n in range(1, 13)
    ]
    assert [row["step"] for row in table if row["val_loss"]] == ["6", "12"]
