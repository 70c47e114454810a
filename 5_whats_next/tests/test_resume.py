"""What a start finds: settings that differ, a run that is in use, names and files of others."""

import errno
import os
import signal
from pathlib import Path
from unittest import mock

import lightning_train
import numpy as np
import pytest
import torch
from jsonargparse.typing import PositiveInt

from src.callbacks import cloud_upload as callbacks
from src.callbacks.stop_and_save import StopAndSave
from src.data import checked_store
from src.model.lightning_module import AutoencoderModule
from src.run import preemption, resume
from src.run.checkpoint_files import (
    DurableCheckpointIO,
    newest_intact,
    read_step,
    save_durably,
)
from src.run.cloud_run import CloudRun
from src.run.errors import UserError, one_line_errors
from tests.in_phase import signal_at
from tests.runs import TINY, call, start, train, wait_until_gone
from tests.test_cloud import RUNS, training


def local(monkeypatch, tmp_path, *words):
    options = [f"--trainer.output_dir={tmp_path}", "--trainer.run_name=run"]
    options += ["--trainer.cloud_storage_path=none", *words]
    return call(monkeypatch, TINY, *options)


def test_two_trainings_of_one_run(monkeypatch, tmp_path):
    """The lock is rank 0's: a launcher gives it back (test_preemption kills one alone).

    Broken by: no hold in find_start, or in train; no stack.close.
    """
    refused = []

    def begin_another(*_):
        (path,) = output.glob("run*")
        with pytest.raises(UserError, match="another process is training"):
            with resume.lock(path, "training"):
                pass
        refused.append(path.name)

    hook = "on_train_batch_start"
    monkeypatch.setattr(StopAndSave, hook, begin_another, raising=False)
    output = tmp_path / "new"
    train(monkeypatch, output, "--trainer.cloud_storage_path=none")
    assert set(refused) == {"run_1"}
    refused.clear()
    output = tmp_path
    for words in ([], [f"--resume={tmp_path}/run"]):
        words = [*words, f"--trainer.max_steps={1 + len(words)}"]
        with pytest.raises(SystemExit, match="0"):
            local(monkeypatch, tmp_path, *words)
    assert refused == ["run", "run"]

    def launch(_):
        with resume.lock(tmp_path / "run", "training"):
            return 7

    monkeypatch.setattr(lightning_train, "launch", launch)
    assert local(monkeypatch, tmp_path, "--trainer.devices=2") == 7


@pytest.mark.parametrize("moment", ["enqueue", "finish", "signal"])
def test_another_machine_takes_over(monkeypatch, tmp_path, capsys, moment):
    """Noticed while it trains, or in the last uploads, also those of a signal.

    Broken by: no check_owner in upload; no is_taken_over; no exit in finish.
    """
    cloud = CloudRun(f"{RUNS}/{tmp_path.name}", tmp_path / "other")
    finish = callbacks.CloudUploadCallback.finish
    enqueue = callbacks.Uploader.enqueue

    def take_over(callback, seconds):
        cloud.claim()
        return finish(callback, seconds)

    def take_over_early(uploader, path):
        if not cloud.owner:
            cloud.claim()
        enqueue(uploader, path)
        with uploader.changed:
            uploader.changed.wait_for(lambda: uploader.error)

    def receive(callback, *_):
        callback.request.number = signal.SIGTERM

    if moment == "enqueue":
        monkeypatch.setattr(callbacks.Uploader, "enqueue", take_over_early)
    else:
        monkeypatch.setattr(callbacks.CloudUploadCallback, "finish", take_over)
    if moment == "signal":
        hook = "on_train_batch_start"
        monkeypatch.setattr(StopAndSave, hook, receive, raising=False)
    with pytest.raises(SystemExit) as ended:
        training(monkeypatch, tmp_path)
    assert ended.value.code == callbacks.TAKEN_OVER
    assert "another process has taken over" in capsys.readouterr().out
    assert cloud.folder.read("owner") == cloud.owner
    _, step = newest_intact(tmp_path / tmp_path.name / "checkpoints")
    assert (step == 12) == (moment == "finish")


@pytest.mark.parametrize("moment", ["write", "upload"])
def test_a_takeover_during_an_upload(monkeypatch, tmp_path, moment):
    """The earlier process may finish one object. It deletes none, and writes no other.

    Broken by: no check_owner before, or after folder.upload.
    """
    path = tmp_path / "checkpoints" / "last.ckpt"
    (tmp_path / "config.yaml").write_text("a: 1")
    address = f"{RUNS}/{tmp_path.name}"
    first, second = (CloudRun(address, tmp_path) for _ in range(2))
    first.claim()
    for step in (1, 2):
        save_durably({"global_step": step}, path)
        first.upload(path, "last.ckpt", step)
    function = getattr(first.folder, moment)

    def take_over(*arguments):
        if not second.owner:
            second.claim()
        function(*arguments)

    monkeypatch.setattr(first.folder, moment, take_over)
    for _ in range(2):
        save_durably({"global_step": 9}, path)
        with pytest.raises(UserError, match="another process has taken over"):
            first.upload(path, "last.ckpt", 9)
    assert [copy.step for copy in second.copies()] == [9, 2, 1]
    # The later one goes on from step 2.
    for step in (3, 4):
        save_durably({"global_step": step}, path)
        second.upload(path, "last.ckpt", step)
    assert [copy.step for copy in second.copies()] == [9, 4, 3]


def test_a_takeover_does_not_hide_an_error(monkeypatch):
    """Lightning raises it again. Broken by: no `except SystemExit` in on_exception."""
    callback = callbacks.CloudUploadCallback()

    def finish(seconds):
        raise SystemExit(callbacks.TAKEN_OVER)

    monkeypatch.setattr(callback, "finish", finish)
    callback.on_exception(None, None, KeyError("mine"))
    with pytest.raises(SystemExit, match="4"):
        callback.on_exception(None, None, SystemExit(1))


def test_settings_are_compared_before_a_download(monkeypatch, tmp_path):
    """With those of the command, and of the disk; and before an upload, of a disk that is ahead.

    Broken by: no check_settings; one of newer checkpoints only.
    """
    with pytest.raises(SystemExit, match="0"):
        training(monkeypatch, tmp_path, "max_steps=6")
    folder = (tmp_path / tmp_path.name).rename(tmp_path / "kept")
    # The same name on another machine, with fewer steps of another model.
    small = "--model.depth=1"
    words = ["cloud_storage_path=none", "max_steps=2"]
    with pytest.raises(SystemExit, match="0"):
        training(monkeypatch, tmp_path, *words, model=small)
    here = tmp_path / tmp_path.name
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    address = f"{RUNS}/{tmp_path.name}"
    with pytest.raises(UserError, match=f"model differs from that of {address}; "):
        training(monkeypatch, tmp_path, model=small)
    words = [f"--resume={address}", f"--trainer.output_dir={tmp_path}"]
    with pytest.raises(UserError, match=f"model differs from that of {address}; "):
        call(monkeypatch, *words)
    after = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    assert before == after
    # An upload would replace the cloud's settings.
    words = ["cloud_storage_path=none", "max_steps=7"]
    with pytest.raises(SystemExit, match="0"):
        training(monkeypatch, tmp_path, *words, model=small)
    with pytest.raises(UserError, match=f"model differs from that of {address}; "):
        training(monkeypatch, tmp_path, model=small)
    assert newest_intact(here / "checkpoints")[1] == 7
    assert newest_intact(folder / "checkpoints")[1] == 6


# What a reader's own module may save, and what names it.
HYPERPARAMETERS = {
    "folder": Path("x"),
    "scale": np.float64(2),
    "width": PositiveInt(2),
}


@pytest.mark.parametrize("cloud", ["none", "s3://embedded/tests/{}"])
def test_a_checkpoint_that_no_resume_reads(monkeypatch, tmp_path, cloud):
    """Broken by: no look at the unchecked file; `unchecked.replace(path)` before it."""
    build_training = lightning_train.build_training

    def build(*arguments):
        training = build_training(*arguments)
        training[1].save_hyperparameters(HYPERPARAMETERS)
        return training

    monkeypatch.setattr(lightning_train, "build_training", build)
    words = ["--trainer.checkpoint_every_n_steps=1"]
    words += [f"--trainer.cloud_storage_path={cloud.format(tmp_path.name)}"]
    names = ", ".join(f"hyper_parameters.{name}" for name in HYPERPARAMETERS)
    with pytest.raises(UserError, match=f"write {names} as str"):
        local(monkeypatch, tmp_path, *words)
    assert not [*tmp_path.rglob("*.ckpt*")]
    state = {"global_step": 1, "widths": [PositiveInt(2)]}  # in a list, too
    with pytest.raises(UserError, match="write widths as str"):
        save_durably(state, tmp_path / "last.ckpt")


def test_a_file_that_cannot_be_read_is_not_damaged(monkeypatch, tmp_path):
    """Broken by: `return False` for every OSError in is_intact."""
    path = tmp_path / "last.ckpt"
    save_durably({"global_step": 1}, path)

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("zipfile.ZipFile.testzip", fail)
    with pytest.raises(UserError, match=r"cannot read .*: Input/output error"):
        newest_intact(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


def test_no_code_of_a_checkpoint_runs(monkeypatch, tmp_path):
    """On any way. Broken by: weights_only=False in saved_step; no refusal there."""
    path = tmp_path / "run" / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True)

    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"global_step": 1, "callbacks": {}, "state_dict": Evil()}, path)
    refused = pytest.raises(UserError, match="mkdir, which no resume reads")
    for words in ([], [f"--resume={tmp_path}/run"]):
        with refused:
            local(monkeypatch, tmp_path, *words)
    with refused:
        read_step(path)
    with refused:
        DurableCheckpointIO().load_checkpoint(path)
    CloudRun(f"{RUNS}/{tmp_path.name}", path.parents[1]).upload(path, "last.ckpt", 1)
    with refused:
        resume.find_run(tmp_path / "elsewhere" / tmp_path.name, "must", RUNS)
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"]
    assert not (tmp_path / "ran").exists()


# Where a signal comes, in which of the calls, and the checkpoint's step after it. Chapter 1 has the
# other phases.
SANITY_BATCHES = (
    "--data.dataset.init_args.num_samples=160"  # two, also of each of two ranks
)
VALIDATION = "src.model.lightning_module.AutoencoderModule.validation_step"
PHASES = {
    "download": ("src.run.resume.find_run", 1, 0),
    "claim": ("src.run.cloud_run.CloudRun.claim", 1, 0),
    "first sanity batch": (VALIDATION, 1, 0),
    "last sanity batch": (VALIDATION, 2, 0),
    "step": ("src.model.lightning_module.AutoencoderModule.training_step", 1, 1),
    "last uploads": ("src.run.uploader.Uploader.flush", 1, 60),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_signal_in_any_phase(monkeypatch, tmp_path, phase):
    """Broken by: no exit_at_signals; no save in StopAndSave; `finish` that forgets its uploader.

    Or no switch_off in setup: after the sanity validation Lightning ends with 0.
    """
    function, number, step = PHASES[phase]
    monkeypatch.setattr(
        preemption, "SECONDS_AFTER_SIGTERM", 1e6
    )  # of this test's process
    only_at_the_end = ["checkpoint_every_n_steps=0", "upload_every_n_steps=0"]
    with (
        pytest.raises(SystemExit) as ended,
        one_line_errors(),
        signal_at(function, number),
    ):
        training(monkeypatch, tmp_path, *only_at_the_end, model=SANITY_BATCHES)
    assert ended.value.code == 143
    folder = tmp_path / tmp_path.name
    assert newest_intact(folder / "checkpoints")[1] == step
    if step:
        assert CloudRun(f"{RUNS}/{folder.name}", folder).copies()[0].step >= step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "rank"),
    [("download", 1), ("last sanity batch", 1), ("last uploads", 0)],
)
def test_a_signal_to_one_rank(tmp_path, phase, rank):
    """All end with 143, in time. Broken by: end_program_in_time that keeps Python's own handler."""
    function, number, step = PHASES[phase]
    settings = [f"--trainer.cloud_storage_path={RUNS}", "--trainer.devices=2"]
    settings += [f"--trainer.run_name={tmp_path.name}", SANITY_BATCHES]
    words = ["-m", "tests.in_phase", function, str(number), str(rank)]
    process = start(tmp_path, *settings, command=words)
    console, _ = process.communicate(timeout=500)
    assert process.returncode == 143, console
    folder = tmp_path / tmp_path.name
    assert newest_intact(folder / "checkpoints")[1] == step
    assert bool(CloudRun(f"{RUNS}/{folder.name}", folder).copies()) == bool(step)
    wait_until_gone(process.pid)


def test_an_error_does_not_cut_the_last_uploads(monkeypatch, tmp_path, capsys):
    """Broken by: no finish in on_exception."""
    clip = AutoencoderModule.configure_gradient_clipping

    def fail(module, *arguments, **settings):
        if module.global_step == 5:
            raise OSError("the data are gone")
        return clip(module, *arguments, **settings)

    monkeypatch.setattr(AutoencoderModule, "configure_gradient_clipping", fail)
    with pytest.raises(OSError, match="the data are gone"):
        training(monkeypatch, tmp_path, "upload_every_n_steps=0")
    folder = tmp_path / tmp_path.name
    assert newest_intact(folder / "checkpoints")[1] == 5
    assert "last.ckpt of step 5: uploaded" in capsys.readouterr().out
    assert CloudRun(f"{RUNS}/{folder.name}", folder).copies()[0].step == 5


def test_uploads_get_what_a_signal_leaves(monkeypatch):
    """Broken by: UPLOAD_SECONDS_ON_ERROR for every exception."""
    monkeypatch.setattr(preemption, "SECONDS_AFTER_SIGTERM", 100)
    waits = []
    monkeypatch.setattr(
        callbacks.CloudUploadCallback, "finish", lambda _, s: waits.append(s)
    )
    request = preemption.TimedStopRequest()
    try:
        request.receive(signal.SIGTERM, None)
        callback = callbacks.CloudUploadCallback("none")
        callback.on_exception(None, None, request.ending(signal.SIGTERM))
    finally:
        request.number = 0
        request.close()
    assert signal.set_wakeup_fd(-1) == -1  # a later SIGTERM is not this request's
    assert 90 < waits[0] < 100


def test_env_files_of_this_project_only(monkeypatch, tmp_path):
    """Chapter before root before nothing. Broken by: find_dotenv in place of the two folders."""
    chapter = tmp_path / "above" / "root" / "chapter"
    chapter.mkdir(parents=True)
    for folder in (chapter, *chapter.parents[:2]):
        text = f"PLACE={folder.name}\n{folder.name.upper()}=1\n"
        (folder / ".env").write_text(text)
    names = ("PLACE", "CHAPTER", "ROOT", "ABOVE")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(checked_store, "__file__", f"{chapter}/src/data/store.py")
    monkeypatch.chdir(chapter)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", dict(os.environ))
        checked_store.configure_libraries.__wrapped__()  # once is enough, and was
        read = [os.environ.get(name) for name in names]
    assert read == ["chapter", "1", "1", None]


def test_a_disk_without_locks_is_refused(monkeypatch, tmp_path):
    """A file in place of a lock would outlive a kill. Broken by: no fallback_to_soft=False."""
    no_lock = mock.Mock(side_effect=OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)))
    monkeypatch.setattr("fcntl.flock", no_lock)
    with pytest.raises(UserError, match="no lock: Function not implemented"):
        local(monkeypatch, tmp_path)
