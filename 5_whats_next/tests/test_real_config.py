"""The real training's configuration is whole, and the command for a laptop that it names works."""

import dataclasses
import sys
from typing import Any

import build_store
import preflight
import pytest
import yaml
from src.config import CHAPTER, parse_config
from src.lightning_settings import LightningSettings

FILE = CHAPTER / "config" / "real.yaml"
KEYS = ("precision", "run_name", "resume_policy", "cloud_storage_path", "upload_interval")
MISSING = sorted(set(KEYS) - {field.name for field in dataclasses.fields(LightningSettings)})
needs_keys = pytest.mark.skipif(bool(MISSING), reason=f"trainer has no {', '.join(MISSING)}")


def settings_of(name: str) -> dict[str, Any]:
    return yaml.safe_load((CHAPTER / "config" / name).read_text())


def test_every_part_is_in_it():
    settings = settings_of("real.yaml")
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
    settings = settings_of("real.yaml")
    window = settings["data"]["dataset"]["init_args"]["window"]
    pairs = zip(window, settings["model"]["patch_size"], strict=True)
    assert all(size % patch == 0 for size, patch in pairs)


@needs_keys
def test_it_parses():
    config, _ = parse_config("", ["-c", str(FILE)], settings=LightningSettings)
    assert config.trainer.devices == 8
    assert config.data.dataset.keywords["batches_ahead"] == 4


@pytest.mark.slow(copies=True)
@needs_keys
def test_preflight_of_the_laptop_version(monkeypatch, capsys, tmp_path):
    """The training in small, planned; the cube is the one that the file says how to build."""
    build_store.cube(months=120)
    words = ["-c", str(FILE), "-c", str(FILE.with_name("laptop.yaml"))]
    words += [f"--trainer.output_dir={tmp_path}", f"--data.dataset.disk_cache={tmp_path}/cache"]
    monkeypatch.setattr(sys, "argv", ["preflight.py", *words])
    monkeypatch.setattr(preflight, "load_environment", lambda: None)
    code = preflight.main()
    assert code == 0, capsys.readouterr().out


def test_laptop_version_changes_only_what_the_real_one_sets():
    """So that no part of it is left out, and none is new."""

    def keys(tree: Any, path: str = "") -> set[str]:
        if not isinstance(tree, dict):
            return {path}
        return {key for name, value in tree.items() for key in keys(value, f"{path}.{name}")}

    assert keys(settings_of("laptop.yaml")) <= keys(settings_of("real.yaml"))
