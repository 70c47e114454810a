"""Helpers of the preflight's tests: a small training that is planned, and its findings."""

import copy
import functools
from typing import Any

import preflight
import pytest
from jsonargparse import Namespace
from src.config import parse_config
from src.lightning_settings import LightningSettings
from src.preflight import steps
from src.preflight.plan import Finding, Plan

from tests.cloud_server import files
from tests.cloud_stores import SMALL

PLACE = "s3://bucket/checkpoints"
SETTINGS = [
    "--data.dataset=CloudDataset",
    "--data.dataset.url=s3://bucket/small.zarr",
    *(f"--data.dataset.{name}={list(value)}" for name, value in SMALL.items()),
    "--data.batch_size=8",
    "--model.patch_size=[3,2,3]",
    "--model.embed_dim=16",
    "--model.decoder_embed_dim=16",
    "--trainer.accelerator=cpu",
    "--trainer.wandb=disabled",
]


@functools.cache
def parsed(arguments: tuple[str, ...]) -> Namespace:
    return parse_config("", [*SETTINGS, *arguments], settings=LightningSettings)[0]


def plan(*arguments: str, limit: float = 30.0, url: str = "", **trainer: Any) -> Plan:
    """The small training; ``trainer`` sets what the Trainer section may not have here.

    With the ``url`` of a store on this machine's disk, which is quicker, it uploads nothing.
    """
    config = copy.deepcopy(parsed((f"--data.dataset.url={url}", *arguments) if url else arguments))
    for name, value in ({"cloud_storage_path": None if url else PLACE} | trainer).items():
        setattr(config.trainer, name, value)
    return Plan(config, steps=2, limit=limit)


def checked(*arguments: str, **trainer: Any) -> dict[str, Finding]:
    return preflight.run_checks(plan(*arguments, **trainer))


@pytest.fixture(autouse=True)
def quick(request, monkeypatch) -> None:
    """Steps are not computed, but where a test asks for them."""
    if "real_steps" not in request.fixturenames:
        monkeypatch.setattr(steps, "time_steps", lambda plan: [0.1] * plan.steps)


@pytest.fixture
def real_steps() -> None:
    """Nothing in their place."""


def left_behind() -> list[str]:
    """Objects; SeaweedFS also lists the folder that they were in."""
    return [name for name in files().find("bucket") if "preflight" in name]


def assert_fails(findings: dict[str, Finding], *names: str) -> None:
    """These and no others."""
    found = {name: one.found for name, one in findings.items() if one.state == "not ok"}
    assert list(found) == list(names), found
    assert all(findings[name].todo for name in names), findings
