"""The real training's configuration is whole, and the command for a laptop that it names works."""

import dataclasses
import re
import shlex
import sys

import preflight
import pytest
import yaml
from src.config import CHAPTER, parse_config
from src.lightning_settings import LightningSettings

FILE = CHAPTER / "config" / "real.yaml"
KEYS = ("precision", "run_name", "resume_policy", "cloud_storage_path", "upload_interval")
MISSING = sorted(set(KEYS) - {field.name for field in dataclasses.fields(LightningSettings)})
needs_keys = pytest.mark.skipif(bool(MISSING), reason=f"trainer has no {', '.join(MISSING)}")


def laptop() -> list[str]:
    """The arguments of the command for a laptop that stands in the file."""
    pattern = r"# +uv run python lightning_train.py (-c \S+ --.*?)\nmodel:"
    comment = re.search(pattern, text(), re.DOTALL)
    assert comment
    return shlex.split(re.sub(r"\\\n#", " ", comment[1]))


def text() -> str:
    return FILE.read_text()


def test_every_part_is_in_it():
    settings = yaml.safe_load(text())
    trainer, data = settings["trainer"], settings["data"]
    assert data["dataset"]["init_args"]["url"].startswith("s3://")
    assert trainer["strategy"] == "ddp"
    assert trainer["precision"] == "bf16-mixed"
    assert trainer["resume_policy"] == "auto"
    assert trainer["cloud_storage_path"].startswith("s3://")
    assert settings["model"]["compile"]
    assert settings["optimizer"]["fused"]
    assert data["num_workers"] > 0
    assert data["batch_size"] % trainer["devices"] == 0


def test_patches_divide_windows():
    settings = yaml.safe_load(text())
    window = settings["data"]["dataset"]["init_args"]["window"]
    pairs = zip(window, settings["model"]["patch_size"], strict=True)
    assert all(size % patch == 0 for size, patch in pairs)


@needs_keys
def test_it_parses():
    config, _ = parse_config("", ["-c", str(FILE)], settings=LightningSettings)
    assert config.trainer.devices == 8
    assert config.data.dataset.keywords["batches_ahead"] == 4


@needs_keys
def test_preflight_of_the_laptop_version(monkeypatch, capsys, tmp_path):
    """The command in the file, planned; the cube is a small one."""
    import build_store

    build_store.cube(months=120)
    words = laptop()
    words[words.index("-c") + 1] = str(FILE)
    monkeypatch.setattr(sys, "argv", ["preflight.py", *words, f"--trainer.output_dir={tmp_path}"])
    monkeypatch.setattr(preflight, "load_environment", lambda: None)
    code = preflight.main()
    assert code == 0, capsys.readouterr().out


def test_laptop_version_overrides_keys_that_exist():
    """Also those in the file that this test cannot parse yet."""
    words = laptop()
    settings = yaml.safe_load(text())
    given = [word.lstrip("-") for word in words if word.startswith("--")]
    assert len(given) > 10
    for key in given:
        section, *names = key.split(".")
        place = settings[section]
        place = place["dataset"]["init_args"] if "dataset" in names else place
        assert names[-1] in place, key
