"""The copy in the cloud: what arrives is whole, faults are survived, and the run comes back."""

import contextlib
import math
import re
import secrets
import shutil
import threading
from unittest import mock

import lightning as L
import lightning_trainer
import pytest
import torch

from src.callbacks.cloud_upload import CloudUploadCallback
from src.callbacks.stop_and_save import StopAndSave
from src.data.s3_server import connect
from src.run.checkpoint_files import newest_intact, save_durably, saved_step
from src.run.cloud_folder import CloudFolder
from src.run.cloud_run import CloudRun
from src.run.config import CHAPTER
from src.run.errors import UserError
from src.run.resume import find_run
from src.run.uploader import Uploader
from tests.fault_proxy import Fault, FaultyProxy, Handler
from tests.own_training import OwnData, OwnModule
from tests.runs import TINY, call, rows

RUNS = "s3://embedded/tests"


# A new folder in the cloud; that on the disk has the same name, "run".
@pytest.fixture
def folder():
    return CloudFolder(f"{RUNS}/{secrets.token_hex(4)}/run")


@pytest.fixture
def proxy(monkeypatch):
    with FaultyProxy(connect()["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("EMBEDDED_S3_ENDPOINT", proxy.url)
        yield proxy


KINDS = ("ckpt", "metrics.csv")  # without a config.yaml


def upload(folder, run, step):
    path = run / "checkpoints" / "last.ckpt"
    save_durably({"weights": [step] * 1000, "global_step": step}, path)
    (run / "metrics.csv").write_text(str(step))
    cloud = CloudRun(folder.url, run)
    cloud.folder = folder
    cloud.claim()
    cloud.upload(path, "last.ckpt", step)
    return cloud


def step_in_the_cloud(folder, place):
    """The step that another machine would go on from."""
    CloudRun(folder.url, place).download_newer_than(0)
    return newest_intact(place / "checkpoints")[1]


def killed_requests(request, number):
    """So many requests, and a kill in the next one."""

    def killed(method, *arguments, **settings):
        if requests.call_count <= number:
            return request(method, *arguments, **settings)
        if method == "_pipe_file":  # SeaweedFS deletes the old object
            request("_rm_file", arguments[0])
        raise KeyboardInterrupt  # in place of SIGKILL: nobody catches it

    requests = mock.Mock(side_effect=killed)
    return requests


def test_a_kill_at_each_request_of_an_upload_loses_nothing(
    folder, tmp_path, monkeypatch, capsys
):
    """And leaves two checkpoints, what belongs to them, and what others have put there.

    Broken by: metrics.csv after the checkpoint, or under one name; deletions before it; no OBJECT.
    """
    folder.write("epoch-7.ckpt", "somebody's own copy")
    folder.write("run/last-000000999-12345678.ckpt", "a copy of the folder in itself")
    for last in (1, 2):
        upload(folder, tmp_path / "run", last)
    for step in range(3, 100):
        requests = killed_requests(folder.request, step - 3)
        monkeypatch.setattr(folder, "request", requests)
        with contextlib.suppress(KeyboardInterrupt):
            upload(folder, tmp_path / "run", step)
        monkeypatch.undo()
        before, last = last, step_in_the_cloud(folder, tmp_path / str(step))
        assert last in (before, step)
        assert int((tmp_path / str(step) / "metrics.csv").read_text()) >= last
        if requests.call_count < step - 2:  # it was not killed
            break
    assert last == step > 7
    assert "skipped" not in capsys.readouterr().out  # each object was whole
    newest, older = CloudRun(folder.url, tmp_path).copies()
    assert newest.step > older.step
    kept = [f"{key[:-5]}.{kind}" for key in (newest.key, older.key) for kind in KINDS]
    assert set(folder.sizes()) == {*kept, "owner", "epoch-7.ckpt"}


@pytest.mark.parametrize("kind", ["503", "reset", "stall"])
def test_an_upload_survives_faults(proxy, folder, tmp_path, monkeypatch, kind):
    """Of each kind of request. Broken by: no retries in store.py."""
    monkeypatch.setattr("src.run.cloud_folder.READ_TIMEOUT", 1)
    folder = CloudFolder(folder.url)
    for method in ("PUT", "GET"):
        proxy.faults = [Fault(kind, 2, f"{method} /embedded/")]
        upload(folder, tmp_path / "run", 5)
        assert proxy.faults[0].times == 0
    assert step_in_the_cloud(folder, tmp_path / "copy") == 5


def test_objects_of_earlier_versions_and_of_one_step(folder, tmp_path):
    """A run that had a list, one metrics.csv, no owner; two checkpoints of one step.

    Broken by: no "" in check_owner; names that are not compared in upload; no look at the parent.
    """
    folder.write("latest.json", "{}")
    for step in (1, 2):
        cloud = upload(folder, tmp_path / "run", step)
    folder.write("last-000000002-00000000.ckpt", "damaged")
    folder.write("metrics.csv", "of an earlier version")
    folder.write("backup/last-000000009-00000000.ckpt", "of a reader")
    folder.delete("owner")
    assert step_in_the_cloud(folder, tmp_path / "elsewhere") == 2
    for step, name in ((3, "last.ckpt"), (4, "best.ckpt")):
        cloud.upload(tmp_path / "run" / "checkpoints" / "last.ckpt", name, step)
    names = [(copy.name, copy.step) for copy in cloud.copies()]
    last = [("last.ckpt", step) for step in (2, 2, 3)]
    assert sorted(names) == [("best.ckpt", 4), *last]
    assert folder.read("latest.json")
    (damaged,) = [copy for copy in cloud.copies() if copy.sha256 == "00000000"]
    assert cloud.read_beside(damaged, "metrics.csv") == "of an earlier version"


def test_a_damaged_copy_is_skipped(folder, tmp_path, monkeypatch, capsys):
    """And an outage is no damage: an older one would be taken.

    Broken by: no digest in download; no `except` in download_name; UserError for DamagedError.
    """
    for step in (1, 2):
        upload(folder, tmp_path / "run", step)
    shutil.rmtree(tmp_path / "run")
    with monkeypatch.context() as patch:
        no_answer = mock.Mock(side_effect=UserError("no answer"))
        patch.setattr(CloudFolder, "download", no_answer)
        with pytest.raises(UserError, match="no answer"):
            find_run(tmp_path / "run", "auto", folder.url.removesuffix("/run"))
    for number, copy in enumerate(CloudRun(folder.url, tmp_path).copies()):
        path = f"{folder.path}/{copy.key}"
        content = bytearray(folder.request("_cat_file", path))
        content[len(content) // 2] ^= 1
        folder.delete(copy.key)
        folder.request("_pipe_file", path, bytes(content))
        if number == 0:
            assert step_in_the_cloud(folder, tmp_path / "elsewhere") == 1
    assert "skipped: s3://embedded/tests/" in capsys.readouterr().out
    with pytest.raises(UserError, match="has no checkpoint that is intact"):
        find_run(tmp_path / "run", "auto", folder.url.removesuffix("/run"))


def test_a_process_that_is_behind_the_cloud(tmp_path, monkeypatch, capsys):
    """It says so, takes over nothing, and leaves the rows of later steps.

    Broken by: no is_ahead in open, or in upload; metrics.csv under one name.
    """
    with pytest.raises(SystemExit, match="0"):
        training(monkeypatch, tmp_path, "max_steps=3")
    here = tmp_path / tmp_path.name
    other = upload(CloudFolder(f"{RUNS}/{here.name}"), tmp_path / "other", 9)
    late = CloudRun(other.folder.url, here)
    with pytest.raises(UserError, match="is ahead of step 3"):
        late.upload(here / "checkpoints" / "last.ckpt", "last.ckpt", 3)
    other.check_owner()
    (other.run / "metrics.csv").write_text("3")
    other.upload(other.run / "checkpoints" / "last.ckpt", "best.ckpt", 3)
    newest = other.copies()[0]
    assert (newest.step, other.read_beside(newest, "metrics.csv")) == (9, "9")
    # Not refused: the later one may be damaged.
    call(monkeypatch, f"--resume={here}")
    assert "cloud     is ahead of step 3" in capsys.readouterr().out


def test_a_copy_that_is_deleted_while_it_is_downloaded(folder, tmp_path, monkeypatch):
    """By a machine that still trains the run: an older one would be taken for the newest.

    Broken by: DamagedError in any case.
    """
    for step in (1, 2):
        cloud = upload(folder, tmp_path / "run", step)
    copies = cloud.copies()
    monkeypatch.setattr(CloudRun, "copies", lambda run: copies)
    folder.delete(copies[0].key)
    place = tmp_path / "elsewhere" / "run"
    with pytest.raises(UserError, match="is gone; start again"):
        find_run(place, "must", folder.url.removesuffix("/run"))


def test_an_upload_is_read_back(folder, tmp_path, monkeypatch):
    """Broken by: no download in upload."""
    upload(folder, tmp_path / "run", 1)
    put = folder.fs._put_file

    async def damaged(path, name, **settings):
        await put(__file__, name, **settings)

    monkeypatch.setattr(folder.fs, "_put_file", damaged)
    with pytest.raises(UserError, match="is damaged"):
        upload(folder, tmp_path / "run", 2)
    assert step_in_the_cloud(folder, tmp_path / "copy") == 1


def test_a_checksum_of_the_store_is_enough(folder, tmp_path, monkeypatch):
    """Also of a file in parts. Broken by: a read-back of each upload."""
    monkeypatch.setattr("src.run.cloud_folder.PART", 5 * 2**20)
    monkeypatch.setattr(folder, "download", pytest.fail)
    for name, size in (("small", 10), ("parts", 11 * 2**20)):
        (tmp_path / name).write_bytes(bytes(size))
        folder.upload(tmp_path / name, name, "")
        assert folder.sizes()[name] == size


def test_a_bucket_without_the_right_to_list(folder, tmp_path, monkeypatch):
    """Broken by: no list in probe; no advice in request."""
    forbidden = mock.AsyncMock(side_effect=PermissionError("Forbidden"))
    monkeypatch.setattr(folder.fs, "_lsdir", forbidden)
    with pytest.raises(UserError, match="to list") as refused:
        folder.probe()
    assert isinstance(refused.value.__cause__, PermissionError)  # is_hopeless


def test_a_damaged_file_is_refused_once(monkeypatch, folder, tmp_path, capsys):
    """An older one, which no start has read; and one that not even names its step.

    Broken by: no DamagedFileError in Uploader.attempt; an error out of enqueue; read_step in
    finish; a file of step None that counts as uploaded.
    """
    cloud = upload(folder, tmp_path / "run", 2)
    path = tmp_path / "run" / "checkpoints" / "best.ckpt"
    weights = torch.arange(100_000.0)
    save_durably({"weights": weights, "global_step": 1}, path)
    content = bytearray(path.read_bytes())
    content[content.index(weights.numpy().tobytes()) + 5] ^= 1
    path.write_bytes(content)
    empty = path.with_name("empty.ckpt")
    empty.touch()
    callback = CloudUploadCallback("none")
    callback.checkpoints = path.parent
    callback.uploader = Uploader(cloud)
    callback.uploader.start()
    # The last lines read no weights; the upload has its own name for is_intact.
    monkeypatch.setattr("src.run.checkpoint_files.is_intact", pytest.fail)
    assert callback.finish(60) == ["best.ckpt", "empty.ckpt"]
    console = capsys.readouterr().out
    assert "best.ckpt of step 1: NOT UPLOADED (best.ckpt is damaged" in console
    assert "empty.ckpt of step None: NOT UPLOADED (" in console
    assert console.count("best.ckpt is not uploaded: ") == 1
    assert "last.ckpt of step 2: uploaded" in console
    assert not list(path.parent.glob(".uploads/*"))


def training(monkeypatch, tmp_path, *words, model="--model.depth=2"):
    every = [
        "checkpoint_every_n_steps=1",
        "upload_every_n_steps=1",
        f"output_dir={tmp_path}",
    ]
    name = [f"run_name={tmp_path.name}", f"cloud_storage_path={RUNS}"]
    options = [f"--trainer.{word}" for word in (*every, *name, *words)]
    call(monkeypatch, TINY, *options, model)
    return tmp_path / tmp_path.name


@pytest.fixture
def whole(monkeypatch, tmp_path):
    training(monkeypatch, tmp_path, "run_name=whole", "cloud_storage_path=none")
    return rows(tmp_path / "whole")


def test_a_run_comes_back_from_the_cloud_alone(monkeypatch, tmp_path, whole, capsys):
    """By name, by address. Broken by: no metrics.csv in upload; no path in state_dict.

    Into another output_dir. Broken by: output_dir in FIXED_ON_RESUME.
    """
    monkeypatch.setenv("CLOUD_STORAGE_PATH", RUNS)
    for step in (5, 8):  # inside an epoch, and at its end
        with pytest.raises(SystemExit, match="0"):
            training(
                monkeypatch, tmp_path, f"max_steps={step}", "cloud_storage_path=null"
            )
        shutil.rmtree(tmp_path / tmp_path.name)
    monkeypatch.delenv("CLOUD_STORAGE_PATH")
    # From a copy, which then goes on: nobody writes to the first one any more.
    folder = CloudFolder(f"{RUNS}/{tmp_path.name}")
    copy = f"{RUNS}/copies/{tmp_path.name}"
    folder.request("_copy", folder.path, copy.removeprefix("s3://"), recursive=True)
    for name in folder.sizes():
        folder.delete(name)
    words = [f"--resume={copy}", f"--trainer.output_dir={tmp_path}/elsewhere"]
    call(monkeypatch, *words, "--trainer.max_steps=-1")
    console = capsys.readouterr().out
    assert console.count(f"cloud     {RUNS}/{tmp_path.name}") == 2
    assert f"cloud     {copy}" in console
    assert not folder.read("owner")
    assert all(
        text in console for text in ("steps 5 to 12", "steps 8 to 12", "12: uploaded")
    )
    assert rows(tmp_path / "elsewhere" / tmp_path.name) == whole


def fail(monkeypatch, proxy, fault):
    """Break the network as the fourth step begins."""

    def begin(callback, trainer, *_):
        if trainer.global_step == 3:
            proxy.faults = [fault]

    monkeypatch.setattr(StopAndSave, "on_train_batch_start", begin, raising=False)


def test_forbidden_uploads_are_said_and_not_awaited(
    monkeypatch, proxy, tmp_path, capsys
):
    """Keys may expire while a run goes on. Broken by: no is_hopeless in flush (600 s)."""
    fail(monkeypatch, proxy, Fault("403", math.inf, "PUT"))
    with pytest.raises(UserError, match=r"^not in the cloud: "):
        training(monkeypatch, tmp_path)
    console = capsys.readouterr().out
    assert "uploads fail: " in console
    assert "last uploads, 600 s at most" in console


def test_an_outage_without_an_end(monkeypatch, proxy, tmp_path, whole, capsys):
    """An exit code says so, and the same command mends it. Uploads alone save inside an epoch, too.

    Broken by: no flush in finish; max_steps taken for a failure; no comparison in on_train_start;
    checkpoint_every_n_steps alone in StopAndSave; no rmtree in open.
    """
    monkeypatch.setattr("src.callbacks.cloud_upload.UPLOAD_SECONDS", 2)
    fail(monkeypatch, proxy, Fault("reset", math.inf, "PUT"))
    words = ["max_steps=7", "checkpoint_every_n_steps=0", "upload_every_n_steps=2"]
    with pytest.raises(UserError, match=r"^not in the cloud: (best.ckpt, )?last.ckpt$"):
        training(monkeypatch, tmp_path, *words)
    folder = tmp_path / tmp_path.name
    assert "last.ckpt of step 7: NOT UPLOADED" in capsys.readouterr().out
    assert rows(folder) == [row for row in whole if int(row["step"]) <= 7]
    files = folder / "checkpoints"
    (files / ".uploads" / "1-last.ckpt").write_bytes(b"")  # as if it had been killed
    assert newest_intact(files) == (files / "last.ckpt", 7)
    assert saved_step(files / "last.previous.ckpt") == 6

    proxy.faults = []
    monkeypatch.setattr("src.callbacks.cloud_upload.UPLOAD_SECONDS", 600)
    with pytest.raises(SystemExit, match="0"):
        training(monkeypatch, tmp_path, *words)
    console = capsys.readouterr().out
    assert "stopped after step 7" in console
    assert "last.ckpt of step 7: uploaded" in console
    training(monkeypatch, tmp_path)
    assert rows(folder) == whole
    assert not [*files.glob(".uploads/*")]


def test_the_newest_checkpoint_wins(tmp_path):
    """While one is on its way, two more are written. Broken by: no unlink in enqueue."""
    path = tmp_path / "last.ckpt"
    uploaded = []
    began, may_end = threading.Event(), threading.Event()

    def upload(snapshot, name, step):
        began.set()
        may_end.wait()
        uploaded.append((saved_step(snapshot), step))

    uploader = Uploader(mock.Mock(upload=upload))
    uploader.start()
    for step in (1, 2, 3):
        save_durably({"global_step": step}, path)
        uploader.enqueue(path)
        began.wait()
    may_end.set()
    uploader.flush(seconds=1e6)
    uploader.close()
    assert not uploader.is_alive()
    assert uploaded == [(1, 1), (3, 3)]
    assert not list((tmp_path / ".uploads").iterdir())


def test_the_disk_is_taken_if_the_cloud_is_silent(
    proxy, monkeypatch, tmp_path, whole, capsys
):
    """And is uploaded when it answers. Without a checkpoint there, the run does not begin.

    Broken by: no `raise` in find_run; no limit; no `except` in open; no claim in upload.
    """
    with pytest.raises(SystemExit, match="0"):
        training(monkeypatch, tmp_path, "max_steps=3")
    earlier = CloudFolder(f"{RUNS}/{tmp_path.name}").read("owner")
    monkeypatch.setattr("src.run.uploader.PAUSE", 0.01)
    monkeypatch.setattr("src.run.cloud_folder.TIMEOUT", 0.5)
    proxy.faults = [Fault("stall", math.inf)]
    with pytest.raises(UserError, match="not finished in 0 s"):
        training(monkeypatch, tmp_path, "run_name=new")

    def end(callback, trainer, *_):
        if trainer.global_step == 8:
            proxy.faults = []
            monkeypatch.setattr("src.run.cloud_folder.TIMEOUT", 60)

    monkeypatch.setattr(StopAndSave, "on_train_batch_start", end, raising=False)
    capsys.readouterr()
    folder = training(monkeypatch, tmp_path)
    console = capsys.readouterr().out
    assert "resume    from the disk, because of" in console
    assert "cloud     not yet: " in console
    assert "last.ckpt of step 12: uploaded" in console
    assert rows(folder) == whole
    assert CloudFolder(f"{RUNS}/{tmp_path.name}").read("owner") != earlier


def test_failures_are_said_at_growing_intervals(monkeypatch, tmp_path, capsys):
    """Broken by: FIRST_NOTICE for each wait; no line when uploads work again.

    Also where there is no room for the copy of a file. Broken by: no notify in enqueue.
    """
    uploader = Uploader(mock.Mock())
    save_durably({"global_step": 1}, tmp_path / "last.ckpt")
    (tmp_path / ".uploads").touch()  # in place of a folder
    with pytest.raises(OSError, match="exists"):
        uploader.enqueue(tmp_path / "last.ckpt")
    assert "cloud     uploads fail: [Errno 17] File exists" in capsys.readouterr().out
    uploader.notify(None)
    capsys.readouterr()
    now = 0
    monkeypatch.setattr("src.run.uploader.time.monotonic", lambda: now)
    for now in range(1, 1000):  # noqa: B007
        uploader.notify(UserError("down"))
    uploader.notify(None)
    first, *others, last = capsys.readouterr().out.splitlines()
    assert first == "cloud     uploads fail: down"
    assert [re.findall(r"\d+", line) for line in others] == [
        [str(seconds)] for seconds in (60, 120, 240, 480, 960)
    ]
    assert last == "cloud     uploads work again"


def test_a_kill_between_two_downloads_loses_none(folder, tmp_path, monkeypatch):
    """Nor does a missing best.ckpt beside a newer last.ckpt. Broken by: no path.exists()."""
    run = tmp_path / "run"
    cloud = upload(folder, run, 5)
    cloud.upload(run / "checkpoints" / "last.ckpt", "best.ckpt", 5)
    (run / "metrics.csv").write_text("step\n8\n")
    save_durably({"global_step": 8}, run / "checkpoints" / "last.ckpt")
    cloud.upload(run / "checkpoints" / "last.ckpt", "last.ckpt", 8)

    here = CloudRun(folder.url, tmp_path / "here")
    download = here.folder.download
    effects = [mock.DEFAULT, InterruptedError]
    here.folder.download = mock.Mock(wraps=download, side_effect=effects)
    with pytest.raises(InterruptedError):
        here.download_newer_than(0)
    here.folder.download = download
    files = here.run / "checkpoints"
    here.download_newer_than(newest_intact(files)[1])
    assert {path.name for path in files.iterdir()} == {"best.ckpt", "last.ckpt"}

    (files / "best.ckpt").unlink()
    (here.run / "metrics.csv").write_text("step\n9\n")
    here.download_newer_than(9)
    assert newest_intact(files) == (files / "last.ckpt", 8)
    assert (files / "best.ckpt").exists()
    assert (here.run / "metrics.csv").read_text() == "step\n9\n"


def test_what_an_earlier_job_has_left_is_uploaded_at_once(tmp_path):
    """Also without room for a copy it is said. Broken by: the interval counted from the start.

    Nor does a file that is gone end a training. Broken by: stat outside of suppress.
    """
    save_durably({"global_step": 36}, tmp_path / "last.ckpt")
    (tmp_path / "gone.ckpt").symlink_to("nowhere")
    callback = CloudUploadCallback("none", upload_interval=10, upload_every_n_steps=5)
    callback.uploader = mock.Mock(uploaded={}, refused={})
    callback.uploader.error = OSError("no room")
    callback.uploader.is_taken_over.return_value = False
    callback.uploader.enqueue.side_effect = callback.uploader.error
    callback.checkpoints = tmp_path
    trainer = mock.Mock(current_epoch=9, log_every_n_steps=100)
    callback.on_load_checkpoint(trainer, None, {"global_step": 36})
    for step, calls in ((36, 1), (39, 1), (40, 2)):
        trainer.global_step = step
        callback.enqueued.clear()
        callback.on_train_batch_start(trainer)
        assert callback.uploader.enqueue.call_count == calls
    # Once more at a multiple of log_every_n_steps: as old as its row says.
    callback.log = mock.Mock()
    trainer.global_step = 99
    callback.on_train_batch_start(trainer)
    callback.log.assert_called_once_with(
        "train_upload_age_steps", 63.0, rank_zero_only=True
    )
    assert callback.finish(1) == ["gone.ckpt", "last.ckpt"]


class TrickleHandler(Handler):
    """Never silent, and never done: a byte now and then, of what it gets or gives."""

    def do_PUT(self) -> None:  # noqa: N802
        while not self.server.stopped.wait(0.2):
            self.rfile.read(1)

    def do_GET(self) -> None:  # noqa: N802
        if "?" in self.path:  # a list
            return super().do_GET()
        self.send_response_only(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        while not self.server.stopped.wait(0.2):
            self.wfile.write(b".")
            self.wfile.flush()


def test_a_transfer_that_is_slow_and_never_silent(proxy, folder, monkeypatch, tmp_path):
    """Broken by: no asyncio.timeout in request; no SECONDS_PER_MB; no size in a call of it."""
    folder = CloudFolder(folder.url)
    proxy.RequestHandlerClass = TrickleHandler
    monkeypatch.setattr("src.run.cloud_folder.TIMEOUT", 1)
    # Only the transfers are measured: on a busy machine, any other request may take a second.
    monkeypatch.setattr(folder, "version", lambda name: "")
    path = tmp_path / "a"
    path.write_bytes(bytes(400_000))
    with pytest.raises(UserError, match="not finished in 2 s"):
        folder.upload(path, "a", "")
    with pytest.raises(UserError, match="not finished in 2 s"):
        folder.download("a", path, "", 400_000)


def test_any_module_is_uploaded(folder, tmp_path, capsys):
    """With the blog's arguments. Broken by: no local_dir."""
    path = folder.url.removeprefix("s3://").removesuffix("/run")
    settings = {
        "upload_interval": 2,
        "upload_during_training": True,
        "upload_on_fit_end": True,
    }
    upload = CloudUploadCallback(
        path, str(tmp_path), **settings, filesystem="s3", run_name="run"
    )
    keeper = L.pytorch.callbacks.ModelCheckpoint(tmp_path, filename="last")
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=3, logger=False, callbacks=[upload, keeper]
    )
    trainer.fit(OwnModule(), OwnData())
    assert "last.ckpt of step 36: uploaded" in capsys.readouterr().out
    assert CloudRun(folder.url, tmp_path).copies()[0].step == 36


def test_lightning_cli_uploads(monkeypatch, tmp_path, capsys):
    """Broken by: no CloudUploadCallback in cli_config.yaml; a path of its own there."""
    # All subcommands would have their arguments read from the signatures.
    cli = lightning_trainer.LightningCLI
    fit = {"fit": cli.subcommands()["fit"]}
    monkeypatch.setattr(cli, "subcommands", staticmethod(lambda: fit))
    monkeypatch.setattr(lightning_trainer, "CHAPTER", tmp_path)
    monkeypatch.setenv("CLOUD_STORAGE_PATH", f"{RUNS}/{tmp_path.name}")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    call(monkeypatch, "fit", f"-c={CHAPTER}/tests/cli.yaml", script=lightning_trainer)
    (address,) = re.findall(rf"cloud     ({RUNS}/\S+)", capsys.readouterr().out)
    assert CloudRun(address, tmp_path / "copy").copies()[0].step > 3


def test_bad_input(monkeypatch, tmp_path):
    """Each ends in one line.

    Broken by: no second parse_config in find_start; no policy in find_run; no name in
    folder_of.
    """
    with pytest.raises(SystemExit, match="0"):
        training(monkeypatch, tmp_path, "max_steps=3")
    for word, expected in (
        ("cloud_storage_path=s3://nowhere/x", "^s3://nowhere/x/"),
        ("resume_policy=must", r"s3://.*/x: no checkpoint \(resume_policy: must\)"),
        ("precision=16-mixed", "trainer.precision: 16-mixed needs a GPU"),
        ("run_name=exp/1", "trainer.run_name: exp/1 is a path"),
    ):
        with pytest.raises(UserError, match=expected):
            training(monkeypatch, tmp_path, "run_name=x", word)
    never = f"output_dir={tmp_path}/elsewhere", "resume_policy=never"
    for words in (never[1:], never):  # on this disk, and in the cloud alone
        with pytest.raises(
            UserError, match=r"here or in the cloud \(resume_policy: never\)"
        ):
            training(monkeypatch, tmp_path, *words)
    with pytest.raises(UserError, match="model differs from that of"):
        training(monkeypatch, tmp_path, model="--model.depth=3")
    with pytest.raises(UserError, match="nowhere/run_1 is no folder"):
        training(monkeypatch, tmp_path, model=f"--resume={tmp_path}/nowhere/run_1")
    assert not (tmp_path / "nowhere").exists()


def test_a_full_log_does_not_end_the_uploads(monkeypatch, tmp_path):
    """Broken by: no suppress in say."""
    monkeypatch.setattr("src.run.uploader.PAUSE", 0.01)
    path = tmp_path / "last.ckpt"
    save_durably({"global_step": 1}, path)
    cloud = mock.Mock(**{"upload.side_effect": [UserError("down"), None]})
    uploader = Uploader(cloud)
    full = mock.Mock(side_effect=OSError("no space left on device"))
    monkeypatch.setattr("builtins.print", full)
    uploader.start()
    uploader.enqueue(path)
    uploader.flush(seconds=60)
    uploader.close()
    assert uploader.uploaded == {"last.ckpt": 1}
