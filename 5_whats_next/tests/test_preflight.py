"""Each check fails when its fault is there, and says what to do; nothing stays behind."""

import copy
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections import namedtuple
from typing import Any

import preflight
import psutil
import pytest
import torch
from jsonargparse import Namespace
from src.config import CHAPTER, parse_config
from src.data.s3_proxy import Fault
from src.errors import UserError
from src.lightning_settings import LightningSettings
from src.preflight import machine, steps, storage
from src.preflight.plan import Finding, Plan, duration, size

from tests.cloud_server import files
from tests.cloud_server import proxy as proxy  # fixtures
from tests.cloud_server import server as server
from tests.cloud_stores import SMALL
from tests.cloud_stores import url as url

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
NETWORK = ("data", "write")


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
    assert [name for name, finding in findings.items() if finding.state == "not ok"] == list(names)
    assert all(findings[name].todo for name in names), findings


def test_all_is_well_and_nothing_stays_behind(server, real_steps):
    before = psutil.Process().children(recursive=True)
    folder = set(CHAPTER.glob("output/*"))
    findings = checked()
    assert_fails(findings)
    assert "not checked" not in {finding.state for finding in findings.values()}, findings
    assert "1.05 MB put in" in findings["write"].found
    assert "ms a step (median of 2, one device)" in findings["time"].found
    assert findings["data"].found.startswith("120 and ")
    assert psutil.Process().children(recursive=True) == before
    assert not left_behind()
    assert set(CHAPTER.glob("output/*")) == folder


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return f"http://127.0.0.1:{door.getsockname()[1]}"


FAULTS = {
    "wrong key": ({"AWS_ACCESS_KEY_ID": "planted"}, "access denied", "allow put, get and delete"),
    "wrong secret": ({"AWS_SECRET_ACCESS_KEY": "planted"}, "access denied", "allow put, get"),
    "closed port": ({"AWS_ENDPOINT_URL": closed_port()}, "Could not connect", "AWS_ENDPOINT_URL"),
    "unknown host": (
        {"AWS_ENDPOINT_URL": "http://nowhere.invalid"},
        "Could not connect",
        "is AWS_ENDPOINT_URL right",
    ),
}


def test_step_that_fails(url, real_steps):
    findings = checked("--optimizer.lr=0", url=url)
    assert_fails(findings, "time")
    assert "optimizer.lr: 0.0 is not positive" in findings["time"].found
    assert findings["memory"] == Finding("not checked", "needs time")


@pytest.mark.parametrize("case", FAULTS)
def test_storage_out_of_reach(server, monkeypatch, case):
    """The other checks go on; those that need the data say so."""
    environment, found, todo = FAULTS[case]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    findings = checked(limit=3.0)
    assert_fails(findings, *NETWORK)
    assert found in findings["data"].found
    assert found in findings["write"].found
    assert todo in findings["write"].todo
    assert "planted" not in str(findings)
    assert findings["sample"] == Finding("not checked", "needs data")
    assert findings["time"] == Finding("not checked", "needs model")
    assert findings["devices"].state == "ok"


def test_storage_that_never_answers(server, proxy):
    """Without a limit this test would not end."""
    proxy.faults.append(Fault("stall", times=None))
    findings = checked(limit=3.0)
    assert_fails(findings, *NETWORK)
    assert "no answer within 2 s" in findings["data"].found
    assert "no answer within 2 s" in findings["write"].found


def test_sample_that_never_comes(server, proxy):
    """The store opens, its chunks do not come; the reader's own patience is longer."""
    proxy.faults.append(Fault("stall", "GET", "/a/c/", times=None))
    findings = checked("--data.dataset.patience=600", limit=3.0)
    assert_fails(findings, "sample")
    assert "no answer within" in findings["sample"].found


def test_no_bucket_is_there(server):
    url = "--data.dataset.url=s3://absent/small.zarr"
    findings = checked(url, cloud_storage_path="s3://absent/checkpoints")
    assert_fails(findings, *NETWORK)
    assert "there is no bucket absent" in findings["data"].found
    assert "make the bucket, or correct trainer.cloud" in findings["write"].todo
    assert not files().exists("absent")


def test_object_that_cannot_be_deleted_is_named(server, proxy):
    proxy.faults.append(Fault("503", "DELETE", times=None))
    findings = checked()
    assert_fails(findings, "write")
    assert "checkpoints/preflight-" in findings["write"].found
    assert "delete it, and allow DELETE there" in findings["write"].todo
    assert len(left_behind()) == 1
    files().rm(left_behind())


def test_object_that_reads_back_as_another_is_an_error(server, monkeypatch):
    async def other(*arguments: object) -> bytes:
        return b"other"

    monkeypatch.setattr("s3fs.S3FileSystem._cat_file", other)
    with pytest.raises(UserError, match="reads back as something else"):
        storage.probe(PLACE)
    monkeypatch.undo()
    assert not left_behind()


def test_no_credentials(server, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    findings = checked()
    assert_fails(findings, "credentials", *NETWORK)
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET" in findings["credentials"].todo
    assert findings["write"].todo == storage.SET_KEYS


def test_half_the_credentials_are_a_warning(server, monkeypatch):
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    found = machine.variables(plan())
    assert found.state == "warning"
    assert "belong together" in found.found


def test_credentials_in_a_url_are_refused_and_not_told():
    with pytest.raises(UserError, match="credentials do not belong") as caught:
        storage.probe("s3://planted:secret@bucket/x")
    assert "planted" not in str(caught.value)


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


def test_local_place_for_checkpoints(tmp_path):
    place = tmp_path / "not" / "there"
    found = storage.write(plan(cloud_storage_path=str(place)))
    assert (found.state, list(tmp_path.iterdir())) == ("ok", [])


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


@pytest.mark.slow
def test_command_ends_although_a_thread_hangs(server, proxy, tmp_path):
    """Python would wait for the threads of the reader."""
    proxy.faults.append(Fault("stall", "GET", "/c/", times=None))
    settings = [word.replace("CloudDataset", "FastDataset") for word in SETTINGS]
    process = subprocess.run(
        [sys.executable, str(CHAPTER / "preflight.py"), *settings, "--steps=2"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        check=False,
    )
    assert process.returncode == 1, process.stderr
    assert "not ok       data" in process.stdout
    assert process.stderr == ""
    assert "not ok" in process.stdout.splitlines()[-1]


@pytest.mark.slow
def test_interrupted_probe_leaves_no_object(server, proxy, tmp_path):
    """Ctrl-C between put and delete."""
    proxy.faults.append(Fault("stall", "GET", "preflight-", times=None))
    code = (
        "from src.errors import one_line_errors\n"
        "from src.preflight.plan import within\n"
        "from src.preflight.storage import probe\n"
        f"with one_line_errors(): within(9, lambda: probe({PLACE!r}, 5))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=CHAPTER)
    proxy.wait_for("GET", "preflight-", timeout=60)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert not left_behind()
