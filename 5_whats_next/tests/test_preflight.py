"""Each check fails when its fault is there, and says what to do; nothing stays behind."""

import os
import shutil
import sys
from collections import namedtuple
from typing import Any

import preflight
import pytest
import torch
from src.errors import UserError
from src.preflight import machine, steps, storage
from src.preflight.plan import Finding, Plan, duration, size

from tests.cloud_server import proxy as proxy  # fixtures
from tests.cloud_server import server as server
from tests.cloud_stores import url as url
from tests.preflight_plans import assert_fails, checked, plan
from tests.preflight_plans import quick as quick  # fixtures
from tests.preflight_plans import real_steps as real_steps


def test_step_that_fails(url, real_steps):
    findings = checked("--optimizer.lr=0", url=url)
    assert_fails(findings, "time")
    assert "optimizer.lr: 0.0 is not positive" in findings["time"].found
    assert findings["memory"] == Finding("not checked", "needs time")


@pytest.mark.parametrize(
    ("arguments", "name", "found", "todo"),
    [
        (
            ["--trainer.devices=64", "--data.batch_size=64"],
            "devices",
            "64 cpu devices",
            "allowed: 1 to",
        ),
        (["--trainer.devices=2", "--data.batch_size=7"], "batch", "7 cannot be sh", "as 8"),
        (["--data.batch_size=5000"], "batch", "5000 is more than", "at most 120"),
        (["--model.patch_size=[3,3,3]"], "model", "patch_size", "allowed"),
        (["--data.dataset.train_months=[0,11]"], "data", "no statistics", "make them with"),
        (["--data.dataset.variables=[c]"], "data", "c not in", "allowed: a, b"),
        (["--trainer.wandb=online"], "wandb", "without a key", "set WANDB_API_KEY"),
    ],
)
def test_setting_that_cannot_work(url, monkeypatch, tmp_path, arguments, name, found, todo):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # where wandb login would keep a key
    findings = checked(*arguments, url=url)
    failed = {key: finding for key, finding in findings.items() if finding.state == "not ok"}
    assert list(failed) == [name], findings
    assert found in failed[name].found
    assert todo in failed[name].todo


@pytest.mark.parametrize(
    ("precision", "state"), [("32-true", "ok"), ("bf16-mixed", "warning"), ("16-mixed", "not ok")]
)
def test_precision_on_a_cpu(precision, state):
    assert machine.precision(plan(precision=precision)).state == state


@pytest.mark.parametrize("emulated", [True, False])
def test_precision_that_a_gpu_emulates(monkeypatch, emulated):
    monkeypatch.setattr(machine, "choose_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda emulation: not emulated)
    found = machine.precision(plan(precision="bf16-mixed"))
    assert (found.state, found.todo) == (("not ok", "set 16-mixed") if emulated else ("ok", ""))


Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def full(monkeypatch) -> None:
    """Disks and shared memory with a few bytes left."""
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(10**6, 10**6, 1000))


def test_full_disk(url, full):
    findings = checked("--data.num_workers=1", url=url)
    assert_fails(findings, "shared memory", "disk")
    assert "make room" in findings["disk"].todo
    assert "--shm-size=1g" in findings["shared memory"].todo


def test_folder_that_cannot_be_written(url, monkeypatch):
    monkeypatch.setattr(os, "access", lambda place, mode: False)
    found = preflight.run_checks(plan("--trainer.output_dir=/absent", url=url))["disk"]
    assert (found.state, "set another folder" in found.todo) == ("not ok", True)


def test_more_processes_than_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(8), raising=False)
    assert machine.cores(plan("--trainer.devices=2", "--data.num_workers=3")).state == "ok"
    found = machine.cores(plan("--trainer.devices=2", "--data.num_workers=4"))
    assert (found.state, "lower data.num_workers to 3" in found.todo) == ("warning", True)


def test_little_memory(monkeypatch):
    planned = plan()
    planned.peak_bytes = 10**15
    assert machine.memory(planned).state == "warning"


def test_large_chunks_for_small_windows(url):
    window = ["--data.dataset.window=[1,2,2]", "--model.patch_size=[1,1,1]"]
    found = checked(*window, url=url)["chunks"]
    assert (found.state, "pack_store.py" in found.todo) == ("warning", True)


def test_infinite_values_and_statistics(url, monkeypatch):
    planned = plan(url=url)
    storage.data(planned)
    dataset = planned.sets[0]
    monkeypatch.setattr(type(dataset), "__getitem__", lambda self, i: (torch.tensor(torch.inf), i))
    assert storage.sample(planned).todo == "mend the data"
    monkeypatch.setattr(dataset, "std", dataset.std * torch.nan)
    assert "build_store.py statistics" in storage.statistics(planned).todo


def estimated(url: str, *, seconds: float, rate: float, **trainer: Any) -> Plan:
    planned = plan("--trainer.max_epochs=10", url=url, **trainer)
    storage.data(planned)
    storage.model(planned)
    planned.step_seconds, planned.upload_rate = seconds, rate
    return planned


def test_time_and_cost_of_all_steps(url, monkeypatch):
    """15 steps of 8 samples in each epoch."""
    monkeypatch.setattr(steps, "time_steps", lambda plan: [90.0, 36.0, 10.0])
    planned = estimated(url, seconds=0, rate=0)
    planned.price_per_hour = 3.5
    found = steps.speed(planned).found
    assert "9 min an epoch of 15 steps" in found
    assert "1 h 30 min for all 150" in found
    assert steps.cost(planned).found == "5.25 at 3.5 an hour"
    planned.config.trainer.max_steps = 50
    assert "for all 50" in steps.speed(planned).found


def test_slow_upload_names_an_interval_that_is_long_enough(url):
    quick = estimated(url, seconds=1.0, rate=1e12, upload_interval=1)
    assert storage.upload(quick).state == "ok"
    slow = estimated(url, seconds=1.0, rate=quick.checkpoint_bytes / 50, upload_interval=2)
    found = storage.upload(slow)  # 50 s for a checkpoint, 15 s for an epoch
    assert (found.state, found.todo) == ("warning", "set trainer.upload_interval to 4 or more")


def test_sizes_and_times_as_people_write_them():
    assert [size(n) for n in (7, 2.56e6, 3e13)] == ["7 B", "2.56 MB", "30 TB"]
    assert [duration(s) for s in (3.14159, 7230)] == ["3.14 s", "2 h 00 min"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--price_per_hour=much"], "--price_per_hour: .*much.*; allowed: a number"),
        (["--steps=0"], "--steps, --price_per_hour, --limit: allowed: from 1"),
        (["--limit=2"], "from 3"),
        (["--data.batch=8"], "allowed: .*batch_size"),
        (["--data.dataset.secret=planted"], "^data.dataset.secret: looks like a secret"),
    ],
)
def test_bad_input_is_one_line(monkeypatch, arguments, message):
    monkeypatch.setattr(preflight, "load_environment", lambda: None)
    monkeypatch.setattr(sys, "argv", ["preflight.py", *arguments])
    with pytest.raises(UserError, match=message) as caught:
        preflight.main()
    assert "\n" not in str(caught.value)
    assert "planted" not in str(caught.value)
