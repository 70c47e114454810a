"""CloudUploadCallback against a real S3 server: what arrives, in which order, and what does not."""

import threading
from pathlib import Path

import pytest
import torch
from src.callbacks import CloudUploadCallback
from src.checkpoint_files import identify, save_durably
from src.cloud_folder import CloudFolder, etag, full_url
from src.cloud_run import CloudRun, fetch, read_copies
from src.data.cloud_errors import CloudError
from src.data.cloud_store import SILENCE
from src.data.s3_proxy import Fault
from src.errors import UserError
from src.uploader import Uploader

from tests.cloud_runs import copies, latest, objects
from tests.cloud_runs import path as path  # fixtures
from tests.cloud_server import files
from tests.cloud_server import proxy as proxy
from tests.cloud_server import server as server
from tests.lightning_runs import (
    assert_same_lightning_run,
    call_lightning,
    run_cli,
    shared_reference,
)
from tests.lightning_runs import train_lightning as train

GOES_TOGETHER = ["last", "metrics"]  # config.yaml stays as it is


@pytest.fixture
def run(tmp_path) -> Path:
    """A run's folder, with one step's checkpoint."""
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text("a: 1\n")
    (folder / "metrics.csv").write_text("step\n1\n")
    save(folder, 1)
    return folder


def save(run: Path, step: int, name: str = "last.ckpt") -> Path:
    path = run / "checkpoints" / name
    save_durably({"global_step": step, "weights": torch.full((9000,), float(step))}, path, step)
    return path


def writer(path: str, run_id: str = "one", keep: int = 2) -> CloudRun:
    copy = CloudRun(CloudFolder(path), run_id, keep)
    copy.claim()
    return copy


def upload(copy: CloudRun, run: Path, step: int, name: str = "last.ckpt") -> None:
    with (run / "metrics.csv").open("a") as file:
        file.write(f"{step}\n")
    path = save(run, step, name)
    copy.save(path, identify(path, name, step, []), run, 20.0)


def test_object_first_then_the_list_then_the_deletions(proxy, path, run):
    copy = writer(path)
    for step in (1, 2):
        upload(copy, run, step)
    proxy.requests.clear()
    upload(copy, run, 3)
    written = [r.path.rpartition("/")[2] for r in proxy.requests if r.method == "PUT"]
    deleted = [r.path.rpartition("/")[2] for r in proxy.requests if r.method == "DELETE"]
    assert [name.partition("-")[0] for name in written] == [*GOES_TOGETHER, "latest.json"]
    order = [r.method for r in proxy.requests if r.method in ("PUT", "DELETE")]
    assert order == ["PUT"] * 3 + ["DELETE"] * len(deleted)
    assert {name.partition("-")[0] for name in deleted} == set(GOES_TOGETHER)
    assert copies(path) == [("last.ckpt", 3), ("last.ckpt", 2)]


def test_the_list_says_what_is_there(server, path, run):
    copy = writer(path)
    upload(copy, run, 7)
    head = latest(path)
    saved = run / "checkpoints" / "last.ckpt"
    assert (head["name"], head["step"], head["size"]) == ("last.ckpt", 7, saved.stat().st_size)
    assert len(head["sha256"]) == 64
    assert set(head["files"]) == {"config.yaml", "metrics.csv"}
    named = {head["object"], *(file["object"] for file in head["files"].values())}
    assert set(objects(path)) == {"latest.json", "run.json", *named}


def test_what_a_killed_process_has_left_is_swept(server, path, run):
    """An object that no list names, and a part of a listed run stays."""
    upload(writer(path), run, 1)
    before = objects(path)
    files().pipe(f"{path}/last-000000009-deadbeef.ckpt", b"half")
    writer(path).sweep()
    assert objects(path) == before


def test_retention_keeps_each_name_apart(server, path, run):
    copy = writer(path)
    upload(copy, run, 1, "best.ckpt")
    for step in (2, 3, 4):
        upload(copy, run, step)
    assert copies(path) == [("last.ckpt", 4), ("last.ckpt", 3), ("best.ckpt", 1)]
    assert sum(name.endswith(".ckpt") for name in objects(path)) == 3


def test_comes_back_to_the_bit(server, path, run, tmp_path):
    copy = writer(path)
    upload(copy, run, 3, "best.ckpt")
    upload(copy, run, 5)
    fetch(copy.folder, tmp_path / "again")
    for name in ("checkpoints/last.ckpt", "checkpoints/best.ckpt", "config.yaml", "metrics.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (run / name).read_bytes()


def test_a_damaged_copy_is_skipped_and_named(server, path, run, tmp_path):
    copy = writer(path)
    for step in (1, 2):
        upload(copy, run, step)
    newest = latest(path)["object"]
    content = bytearray(files().cat(f"{path}/{newest}"))
    content[len(content) // 2] ^= 1
    files().pipe(f"{path}/{newest}", bytes(content))
    said = fetch(copy.folder, tmp_path / "again")
    assert newest in said[0]
    assert "damaged" in said[0]
    assert "step 1" in said[1]


def test_two_checkpoints_of_one_step_have_their_own_metrics(server, path, run, tmp_path):
    """The last one comes after the best one, when metrics.csv has a row more."""
    copy = writer(path)
    upload(copy, run, 4, "best.ckpt")
    upload(copy, run, 4)
    files().rm(f"{path}/{latest(path)['object']}")
    said = fetch(copy.folder, tmp_path / "again")
    assert "is not there" in said[0]
    assert (tmp_path / "again" / "metrics.csv").read_text() == "step\n1\n4\n"
    assert "downloaded best-000000004" in said[1]


def test_what_arrives_damaged_never_counts(proxy, path, run, monkeypatch):
    """The object differs from the file, as after a fault that no checksum on the way has seen."""
    copy = writer(path)
    upload(copy, run, 1)
    original = copy.folder.fs._put_file

    async def damaging(local: str, there: str, **settings: object) -> None:
        other = Path(f"{local}.other")
        other.write_bytes(Path(local).read_bytes()[:-1] + b"x")
        await original(str(other), there, **settings)
        other.unlink()

    monkeypatch.setattr(copy.folder.fs, "_put_file", damaging)
    with pytest.raises(CloudError, match="arrived damaged"):
        upload(copy, run, 2)
    assert copies(path) == [("last.ckpt", 1)]


def offered(copy: CloudRun, run: Path, path: Path, step: int) -> Uploader:
    """What becomes of a file that is offered."""
    uploader = Uploader(copy, run, 20.0)
    uploader.offer(path, step)
    uploader.flush(60)
    uploader.close()
    return uploader


def test_what_is_damaged_on_the_disk_is_not_uploaded(server, path, run):
    """Nor is that tried again: it would not mend it."""
    file = save(run, 2)
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    uploader = offered(writer(path), run, file, 2)
    assert uploader.problem == "last.ckpt is damaged on this disk, and is not uploaded"
    assert (uploader.failures, copies(path)) == (0, [])


def test_half_a_file_of_another_writer_is_not_uploaded(server, path, run):
    """Without a manifest, as with Lightning's own CheckpointIO; its step is the training's."""
    whole = run / "checkpoints" / "last.ckpt"
    (run / "checkpoints" / "manifest.json").unlink()
    copy = writer(path)
    offered(copy, run, whole, 4)
    half = run / "checkpoints" / "half.ckpt"
    half.write_bytes(whole.read_bytes()[:5000])
    assert "half.ckpt is not whole" in offered(copy, run, half, 5).problem
    assert copies(path) == [("last.ckpt", 4)]


@pytest.mark.parametrize("size", [1000, 40 * 2**20], ids=["one piece", "parts"])
def test_the_etag_is_computed_as_s3_does(server, path, tmp_path, size):
    file = tmp_path / "file"
    file.write_bytes(bytes(range(250)) * (size // 250))
    files().put_file(str(file), f"{path}/file", chunksize=16 * 2**20)
    assert files().info(f"{path}/file")["ETag"].strip('"') == etag(file)


FAULTS = [("503", "PUT"), ("reset", "PUT"), ("503", "HEAD"), ("reset", "GET"), ("503", "DELETE")]


@pytest.mark.parametrize(("kind", "method"), FAULTS)
def test_faults_that_pass_are_tried_again(proxy, path, run, kind, method):
    copy = writer(path, keep=1)
    upload(copy, run, 1)
    proxy.faults.append(Fault(kind, method=method, times=2))
    upload(copy, run, 2)
    assert proxy.faults[0].taken == 2
    assert copies(path) == [("last.ckpt", 2)]


def test_a_hang_ends_at_the_deadline(proxy, path, run):
    copy = writer(path)
    upload(copy, run, 1)
    proxy.faults.append(Fault("stall", method="PUT", times=None))
    file = save(run, 2)
    with pytest.raises(CloudError, match="no answer within 2 s"):
        copy.save(file, identify(file, "last.ckpt", 2, []), run, 2.0)
    proxy.faults.clear()
    assert copies(path) == [("last.ckpt", 1)]


def test_a_body_that_stalls_is_sent_again(proxy, path, run, monkeypatch):
    """Too large for the buffers on the way, so that nobody waits for an answer yet."""
    monkeypatch.setattr("src.cloud_folder.STALL", 1.0)
    monkeypatch.setattr("src.cloud_folder.SLOWEST", 2**30)
    large = run / "checkpoints" / "last.ckpt"
    torch.save({"weights": torch.zeros(3_000_000)}, large)
    copy = writer(path)
    proxy.faults.append(Fault("stall", method="PUT", path_contains="last-"))
    copy.save(large, identify(large, "last.ckpt", 2, []), run, SILENCE - 1)
    assert copies(path) == [("last.ckpt", 2)]


def test_two_runs_cannot_overwrite_each_other(server, path, run):
    upload(writer(path, "one"), run, 1)
    with pytest.raises(CloudError, match="belongs to another run; choose another name"):
        writer(path, "two")


def test_the_process_that_took_over_is_the_one_that_writes(server, path, run):
    """A job that hung, and was requeued, must not write over what its successor has done."""
    first = writer(path)
    upload(first, run, 1)
    second = writer(path)
    upload(second, run, 5)
    with pytest.raises(CloudError, match="continued by another process"):
        upload(first, run, 2)
    assert copies(path)[0] == ("last.ckpt", 5)


def test_the_newest_wins_and_the_queue_is_bounded(server, path, run, monkeypatch):
    """While one upload takes its time, a hundred checkpoints come; one of them is next."""
    copy = writer(path)
    begun, go_on = threading.Event(), threading.Event()
    original = copy.save

    def slow(*arguments):
        begun.set()
        assert go_on.wait(60)
        return original(*arguments)

    monkeypatch.setattr(copy, "save", slow)
    uploader = Uploader(copy, run, 20.0)
    uploader.offer(run / "checkpoints" / "last.ckpt", 1)
    assert begun.wait(60)
    for step in range(2, 102):
        uploader.offer(save(run, step), step)
        assert len(list((run / "checkpoints" / ".uploads").iterdir())) <= 2
    go_on.set()
    assert uploader.flush(60)
    assert copies(path) == [("last.ckpt", 101), ("last.ckpt", 1)]
    assert uploader.superseded == 99
    uploader.close()
    assert not (run / "checkpoints" / ".uploads").exists()


def test_an_outage_ends_and_the_newest_arrives(proxy, path, run):
    copy = writer(path)
    uploader = Uploader(copy, run, 0.5)
    proxy.faults.append(Fault("reset", times=None))
    uploader.offer(run / "checkpoints" / "last.ckpt", 1)
    with uploader.changed:
        assert uploader.changed.wait_for(lambda: uploader.failures, 60)
    uploader.offer(save(run, 2), 2)
    proxy.faults.clear()
    assert uploader.flush(60)
    uploader.close()
    assert copies(path)[0] == ("last.ckpt", 2)


@pytest.fixture
def reference(tmp_path_factory):
    return shared_reference(tmp_path_factory.getbasetemp())


def test_lost_machine(monkeypatch, server, path, tmp_path, reference, capsys):
    """Trained to step 6, the folder gone, on from the cloud alone: the same bits."""
    settings = [f"--trainer.cloud_storage_path={path}", "--trainer.run_name=run"]
    assert train(monkeypatch, tmp_path, "--trainer.max_steps=6", *settings) == 0
    assert "last.ckpt of step 6 is there" in capsys.readouterr().out
    (tmp_path / "run").rename(tmp_path / "lost")
    resume = [f"--resume={path}/run", f"--trainer.output_dir={tmp_path}", "--trainer.max_steps=-1"]
    assert call_lightning(monkeypatch, *resume) == 0
    assert "downloaded last-000000006" in capsys.readouterr().out
    assert_same_lightning_run(reference, tmp_path / "run")
    assert copies(path + "/run")[0] == ("last.ckpt", 12)


def test_another_place_keeps_the_best_score(monkeypatch, server, path, tmp_path):
    settings = [f"--trainer.cloud_storage_path={path}", "--trainer.run_name=run"]
    assert train(monkeypatch, tmp_path, "--trainer.max_steps=6", *settings) == 0
    other = tmp_path / "elsewhere"
    assert call_lightning(monkeypatch, f"--resume={path}/run", f"--trainer.output_dir={other}") == 0
    states = torch.load(other / "run/checkpoints/last.ckpt", weights_only=True)["callbacks"]
    best = next(state for name, state in states.items() if "val_loss" in name)
    assert best["dirpath"] == str(other / "run" / "checkpoints")
    assert best["best_model_score"] is not None


def test_policies(monkeypatch, server, path, tmp_path, reference):
    settings = [f"--trainer.cloud_storage_path={path}", "--trainer.run_name=run"]
    must, never = "--trainer.resume_policy=must", "--trainer.resume_policy=never"
    with pytest.raises(UserError, match="must, but the run run has no checkpoint"):
        train(monkeypatch, tmp_path, must, *settings)
    assert not (tmp_path / "run").exists()
    assert train(monkeypatch, tmp_path, "--trainer.max_steps=3", never, *settings) == 0
    with pytest.raises(UserError, match="never, but the run run has a checkpoint"):
        train(monkeypatch, tmp_path, never, *settings)
    assert train(monkeypatch, tmp_path, "--trainer.max_steps=7", must, *settings) == 0
    assert train(monkeypatch, tmp_path, *settings) == 0
    assert_same_lightning_run(reference, tmp_path / "run")


def test_a_storage_that_cannot_be_written_is_found_out_at_once(monkeypatch, server, tmp_path, path):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(UserError, match=r"access denied: .* \(writing probe-"):
        train(monkeypatch, tmp_path, f"--trainer.cloud_storage_path={path}")
    assert not any(tmp_path.glob("run_*"))


def test_what_is_not_in_the_cloud_at_the_end(monkeypatch, proxy, path, tmp_path, capsys):
    """The storage fails when the training has begun: it goes on, and the exit code tells."""
    from src.model.lightning_module import AutoencoderModule

    original = AutoencoderModule.training_step
    monkeypatch.setattr("src.callbacks.CloudUploadCallback.finish", finish_soon)

    def fails_from_step_two(module, *arguments):
        if module.global_step == 2 and not proxy.faults:
            proxy.faults.append(Fault("reset", times=None))
        return original(module, *arguments)

    monkeypatch.setattr(AutoencoderModule, "training_step", fails_from_step_two)
    settings = [f"--trainer.cloud_storage_path={path}", "--trainer.run_name=run"]
    assert train(monkeypatch, tmp_path, *settings) == 1
    printed = capsys.readouterr()
    assert "last.ckpt of step 12 is NOT there" in printed.out
    assert "error: not in the cloud: best.ckpt, last.ckpt; on this disk:" in printed.err
    assert (tmp_path / "run" / "summary.json").exists()


finish = CloudUploadCallback.finish


def finish_soon(callback: CloudUploadCallback, trainer, seconds: float) -> None:
    finish(callback, trainer, min(seconds, 1.0))


BAD = [
    (["upload_interval=0"], "upload_interval: 0 is too small"),
    (["cloud_storage_path=ftp://x/y"], "is no address of filesystem s3"),
    (["cloud_storage_path=s3://key:secret@bucket/x"], "credentials do not belong into a URL"),
]


@pytest.mark.parametrize(("given", "message"), BAD)
def test_bad_input_is_one_line(given, message):
    arguments = dict(one.split("=", 1) for one in given)
    values = {key: int(value) if value.isdigit() else value for key, value in arguments.items()}
    with pytest.raises(UserError, match=message) as error:
        CloudUploadCallback(**{"cloud_storage_path": "s3://bucket/x"} | values)
    assert "secret@" not in str(error.value)


def test_addresses(tmp_path, monkeypatch):
    """As a user may write them; what is printed serves from everywhere."""
    monkeypatch.chdir(tmp_path)
    assert full_url("bucket/x/", "s3") == "s3://bucket/x"
    assert full_url("nas/x", "local") == full_url("file://nas/x", "local")
    assert full_url("nas/x", "local") == f"file://{tmp_path}/nas/x"
    azure = "abfs://container@account.dfs.core.windows.net/x"
    assert full_url(azure, "abfs") == azure
    with pytest.raises(CloudError, match="credentials do not belong"):
        full_url("abfs://container:secret@account.dfs.core.windows.net/x", "abfs")


def test_a_local_folder_is_a_cloud_as_well(run, tmp_path):
    copy = CloudRun(CloudFolder(str(tmp_path / "nas"), "local"), "one", 2)
    copy.folder.probe("probe", 5.0)
    copy.claim()
    for step in (1, 2, 3):
        upload(copy, run, step)
    assert [c.step for c in read_copies(copy.folder)] == [3, 2]
    assert not list((tmp_path / "nas").glob("*.part"))


def test_the_command_line_goes_on_from_the_cloud(monkeypatch, server, path, tmp_path, reference):
    """LightningCLI, with the address as --ckpt_path."""
    settings = [f"--trainer.cloud_storage_path={path}", "--trainer.run_name=run"]
    assert train(monkeypatch, tmp_path / "first", "--trainer.max_steps=6", *settings) == 0
    assert run_cli(monkeypatch, "fit", tmp_path, f"--ckpt_path={path}/run") == 0
    assert_same_lightning_run(reference, tmp_path / "run")
