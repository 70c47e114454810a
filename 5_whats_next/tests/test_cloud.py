"""Up to the cloud and back from it, and what can go wrong there."""

import gc
import os
import secrets
import shutil
from functools import partial

import pytest
import torch

from src.callbacks import cloud_upload
from src.data.s3_server import connect
from src.data.store import file_system
from src.run import cloud, resume
from src.run.cloud import CloudRun
from src.run.errors import UserError
from tests.fault_proxy import proxy  # noqa: F401
from tests.runs import assert_same_run, call, finish, new, rows, start, train

SCRIPT = "lightning_train.py"
DUE = "--trainer.upload_every_n_steps=2"
PATH = "s3://embedded/checkpoints"
NO_CLOUD = "--trainer.cloud_storage_path=none"
# The training that kills itself in the middle of its second checkpoint.
KILLED_IN_SAVE = r"""if True:
    import os, sys
    import lightning_train
    calls = []
    def fsync(file):
        calls.append(file)
        if len(calls) == 3:
            os.kill(os.getpid(), 9)
    os.fsync = fsync
    sys.exit(lightning_train.main())
"""


# A name that no other run in the bucket has.
@pytest.fixture
def name():
    return f"run-{secrets.token_hex(4)}"


# The command that begins the run of this name, and goes on with it.
@pytest.fixture
def same_command(monkeypatch, tmp_path, name):
    settings = [*new(tmp_path), DUE]

    def command(*words: str) -> int:
        gc.collect()  # the lock of a call that has raised
        return call(monkeypatch, *settings, f"--trainer.run_name={name}", *words)

    return command


def objects(name: str) -> list[str]:
    return CloudRun(f"{PATH}/{name}").objects("last")


@pytest.mark.slow
def test_killed_in_a_save_an_upload_and_a_download(
    monkeypatch,
    tmp_path,
    name,
    proxy,  # noqa: F811
    same_command,
):
    """The same command goes on each time, at last from the cloud alone: to the same bits.

    Broken by: no temporary in atomic_write; no step in the objects' names.
    """
    reference = train(monkeypatch, tmp_path / "reference", NO_CLOUD)
    settings = [*new(tmp_path), DUE, f"--trainer.run_name={name}"]
    finish(start("-c", KILLED_IN_SAVE, *settings), -9)

    proxy.faults = [(f"PUT /embedded/checkpoints/{name}/last-000000012", "silence")]
    process = start(SCRIPT, *settings)
    assert proxy.seen.wait(100)
    process.kill()
    assert "training  steps 2 to 12" in finish(process, -9)
    shutil.rmtree(tmp_path / name)

    proxy.seen.clear()
    proxy.faults = [(f"GET /embedded/checkpoints/{name}/last", "half")]
    process = start(SCRIPT, *settings)
    assert proxy.seen.wait(100)
    process.kill()
    finish(process, -9)
    assert not (tmp_path / name / "checkpoints" / "last.ckpt").exists()

    proxy.faults = []
    assert same_command() == 0
    assert_same_run(reference, tmp_path / name)


@pytest.mark.slow
def test_two_ranks_killed_go_on_from_the_cloud_alone(tmp_path, name, proxy):  # noqa: F811
    """All steps are done when the kill comes, and the last upload is not: to the same bits.

    Broken by: no release of the lock before launch; no step in the objects' names.
    """
    settings = [*new(tmp_path), DUE, "--trainer.devices=2", "--trainer.max_epochs=9"]
    settings.append(f"--trainer.run_name={name}")
    proxy.faults = [(f"PUT /embedded/checkpoints/{name}/last-000000036", "silence")]
    process = start(SCRIPT, *settings)
    assert proxy.seen.wait(100)
    process.kill()
    finish(process, -9)
    reference = (tmp_path / name).rename(tmp_path / "reference")
    proxy.faults = []
    assert "resume    downloaded last-" in finish(start(SCRIPT, *settings))
    assert_same_run(reference, tmp_path / name)


def test_a_damaged_object_is_skipped(monkeypatch, tmp_path, name, same_command, capsys):
    """And the one before it is taken. Broken by: no digest in download_newer."""
    reference = train(monkeypatch, tmp_path / "reference", NO_CLOUD)
    with pytest.raises(SystemExit, match="0"):
        same_command("--trainer.max_steps=6")
    same_command()
    newest, before = objects(name)
    assert newest.startswith("last-000000012-")
    run = CloudRun(f"{PATH}/{name}")
    run.fs.pipe_file(f"{run.path}/{newest}", b"damaged")
    shutil.rmtree(tmp_path / name)
    address = f"--resume={run.url}"
    call(monkeypatch, address, f"--trainer.output_dir={tmp_path}")
    shown = capsys.readouterr().out
    assert f"{newest} is damaged, and is skipped\n" in shown
    assert f"downloaded {before}\n" in shown
    assert_same_run(reference, tmp_path / name)

    for key in objects(name):
        run.fs.pipe_file(f"{run.path}/{key}", b"damaged")
    shutil.rmtree(tmp_path / name)
    with pytest.raises(UserError, match="has no checkpoint that is whole"):
        same_command()
    with pytest.raises(UserError, match="typo has no checkpoint"):
        call(monkeypatch, f"{address}typo", f"--trainer.output_dir={tmp_path}")


def test_a_refused_upload_is_named(tmp_path, name, proxy, same_command, capsys):  # noqa: F811
    """The training goes on; later the same command uploads. Broken by: no except in upload_new."""
    proxy.faults = [("PUT", "403")]
    with pytest.raises(UserError, match="not all is in the cloud"):
        same_command()
    shown = capsys.readouterr().out
    assert "cloud     last.ckpt failed: " in shown
    assert "cloud     best.ckpt is NOT in the cloud" in shown
    assert rows(tmp_path / name)[-1]["step"] == "12"
    proxy.faults = []
    assert same_command() == 0
    assert "cloud     last.ckpt is in the cloud" in capsys.readouterr().out
    assert objects(name)[0].startswith("last-000000012-")


def test_a_silent_cloud(monkeypatch, tmp_path, name, proxy, same_command, capsys):  # noqa: F811
    """With nothing on the disk it is no new beginning. Broken by: no exists in find_checkpoint."""
    monkeypatch.setattr(cloud, "file_system", partial(file_system, read_timeout=0.1))
    monkeypatch.setattr(cloud_upload, "UPLOAD_SECONDS", 0.1)
    proxy.faults = [("", "silence")]
    with pytest.raises(UserError, match="gives no answer"):
        same_command()
    assert not (tmp_path / name / "metrics.csv").exists()
    same_command(NO_CLOUD)
    with pytest.raises(UserError, match="not all is in the cloud"):
        same_command("--trainer.max_epochs=4", f"--trainer.cloud_storage_path={PATH}")
    assert "resume    from the disk; s3://embedded/checkp" in capsys.readouterr().out
    assert rows(tmp_path / name)[-1]["step"] == "16"


@pytest.mark.slow
def test_sigterm_while_an_upload_hangs(monkeypatch, tmp_path, name, proxy):  # noqa: F811
    """It gets what is left of the time. Broken by: UPLOAD_SECONDS in on_exception."""
    monkeypatch.setenv("SECONDS_AFTER_SIGTERM", "1")
    proxy.faults = [("PUT", "silence")]
    endless = [
        *new(tmp_path),
        "--data.dataset.num_samples=800000",
        DUE,
        f"--trainer.run_name={name}",
    ]
    process = start(SCRIPT, *endless)
    assert proxy.seen.wait(100)
    process.terminate()
    shown = finish(process, 143)
    assert "stopped after step" in shown
    assert "cloud     last.ckpt is NOT in the cloud" in shown


def test_no_secret_is_written(tmp_path, name, same_command, capfd):
    """Broken by: the file system's options in CloudUploadCallback.state_dict."""
    same_command()
    server = connect()
    shown = "".join(capfd.readouterr()).encode()
    run = CloudRun(f"{PATH}/{name}")
    contents = [shown, *map(run.fs.cat_file, run.fs.find(run.path))]
    contents += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert not any(server[variable].encode() in content for content in contents)


# A checkpoint of a step, as another machine has uploaded it.
def upload(run: CloudRun, folder, step: int, name: str = "last") -> None:
    file = folder / f"{name}.upload"
    torch.save({"global_step": step}, file)
    run.upload(file)


def test_the_one_before_is_kept(tmp_path):
    """And that of a run which goes on from an older one. Broken by: objects(...)[2:] as older."""
    run = CloudRun(f"file://{tmp_path}/cloud")
    for step in (8, 9, 10, 7):
        upload(run, tmp_path, step)
    upload(run, tmp_path, 3, "best")
    steps = [int(key.split("-")[1]) for key in run.objects("last")]
    assert steps == [10, 9, 7]
    assert len(run.objects("best")) == 1


@pytest.mark.parametrize("step_here", [None, 5, 9])
def test_the_newer_one_of_disk_and_cloud(tmp_path, step_here):
    """Broken by: no comparison of steps in download_newer."""
    run = CloudRun(f"file://{tmp_path}/cloud")
    upload(run, tmp_path, 7)
    last = tmp_path / "checkpoints" / "last.ckpt"
    if step_here:
        last.parent.mkdir()
        torch.save({"global_step": step_here}, last)
    assert resume.find_checkpoint(tmp_path, run.url) == last
    assert torch.load(last)["global_step"] == max(7, step_here or 0)


def test_a_full_disk_in_a_download(monkeypatch, tmp_path):
    """Broken by: no atomic_write in download_newer."""

    def fsync(file):
        raise OSError("no space left on device")

    run = CloudRun(f"file://{tmp_path}/cloud")
    upload(run, tmp_path, 7)
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(UserError, match="no space left"):
        resume.find_checkpoint(tmp_path / "run", run.url)
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


def test_one_process_trains_a_run(monkeypatch, same_command, tmp_path, name):
    """Broken by: no lock_folder in find_resume_point."""
    monkeypatch.setattr(resume, "SECONDS_FOR_LOCK", 0.1)
    lock = resume.lock_folder(tmp_path / name)
    with pytest.raises(UserError, match=f"{name}: another process trains this run"):
        same_command()
    lock.release()
    assert same_command() == 0
