"""Where a training begins: a new run, or a checkpoint on the disk or in the cloud."""

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from filelock import FileLock, Timeout
from jsonargparse import Namespace
from lightning.pytorch.utilities import rank_zero_only

from src.callbacks.cloud_upload import storage_path
from src.run.checkpoint_files import newest_intact
from src.run.cloud_run import CloudRun
from src.run.config import CHAPTER, parse_config
from src.run.errors import UserError


@dataclass
class Start:
    """What a training begins with.

    Args:
        config: the settings.
        resolved: the same as YAML.
        folder: the run's; None for a new run without a name.
        checkpoint: the file that the run goes on from; None if it begins.
    """

    config: Namespace
    resolved: str
    folder: Path | None = None
    checkpoint: Path | None = None


def find_start(
    description: str, arguments: list[str], classes: tuple[type, ...], stack: ExitStack
) -> Start:
    """Read the settings, and find the checkpoint that a run goes on from.

    ``stack`` keeps the run's folder for this process.
    """
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--resume", default="")
    options, others = early.parse_known_args(arguments)
    if options.resume and "://" not in options.resume:
        folder = Path(options.resume).resolve()
        return start_from_folder(folder, description, arguments, classes, stack)
    if options.resume:
        # An address is a path and a name, which has to have a checkpoint.
        cloud, _, name = options.resume.rstrip("/").rpartition("/")
        arguments = [
            *others,
            f"--trainer.cloud_storage_path={cloud}",
            f"--trainer.run_name={name}",
            "--trainer.resume_policy=must",
        ]
    config, resolved = parse_config(description, arguments, *classes)
    settings = config.trainer
    if not settings.run_name:
        return Start(config, resolved)
    folder = folder_of(settings.output_dir, settings.run_name)
    cloud = storage_path(settings.cloud_storage_path)
    hold(folder, stack)
    if cloud:
        check_settings(f"{cloud}/{folder.name}", folder, arguments, classes)
    checkpoint = find_run(folder, settings.resume_policy, cloud)
    if checkpoint:
        # The saved settings apply; a setting given here must not contradict them.
        resumed = [*arguments, f"--resume={folder}"]
        config, resolved = parse_config(description, resumed, *classes)
    return Start(config, resolved, folder, checkpoint)


def start_from_folder(
    folder: Path,
    description: str,
    arguments: list[str],
    classes: tuple[type, ...],
    stack: ExitStack,
) -> Start:
    """Go on with the run in a folder, from the disk alone."""
    if not folder.is_dir():
        raise UserError(f"--resume: {folder} is no folder")
    hold(folder, stack)
    checkpoint = find_run(folder, "must", "")
    config, resolved = parse_config(description, arguments, *classes)
    return Start(config, resolved, folder, checkpoint)


def folder_of(output_dir: str, name: str) -> Path:
    """The folder of a run. Raises UserError if it would have another name in the cloud."""
    # ModelCheckpoint compares paths, links and all.
    folder = (CHAPTER / output_dir / name).resolve()
    if folder.name != name:
        raise UserError(
            f"trainer.run_name: {name} is a path, or its folder a link; take a plain name"
        )
    return folder


def hold(folder: Path, stack: ExitStack) -> None:
    """Keep a run's folder for this process. Raises UserError if another one trains there."""
    # The operating system takes a lock back however the process ends. Not the launcher's: it may be
    # killed alone, while its ranks train on.
    if rank_zero_only.rank == 0:
        stack.enter_context(lock(folder, "training"))


@contextmanager
def lock(folder: Path, name: str, blocking: bool = False) -> Iterator[None]:
    """Hold a lock beside a run's folder.

    Raises:
        UserError: another process has it, or the filesystem has no locks.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # A soft one is a file that is there: it would outlive a process that is killed.
    file = FileLock(
        folder.parent / f".{folder.name}.{name}",
        blocking=blocking,
        fallback_to_soft=False,
    )
    try:
        held = file.acquire()
    except Timeout as error:
        raise UserError(f"{folder}: another process is training this run") from error
    except OSError as error:
        raise UserError(f"{folder.parent}: no lock: {error.strerror}") from error
    with held:
        yield


def check_settings(
    address: str, run: Path, arguments: list[str], classes: tuple[type, ...]
) -> None:
    """Raise UserError if the run in the cloud has other settings than this command, or the disk.

    Before a download replaces anything, and before an upload does.
    """
    cloud = CloudRun(address, run)
    try:
        copies = cloud.copies()
        saved = cloud.read_beside(copies[0], "config.yaml") if copies else ""
    except UserError:
        return  # find_run tries again, and decides
    if not saved:
        return
    # Both have to agree with the cloud: this command, and the run on the disk.
    candidates = [arguments]
    local = run / "config.yaml"
    if local.exists():
        candidates.append([f"-c={local}"])
    with TemporaryDirectory() as copy:
        Path(copy, "config.yaml").write_text(saved)
        for candidate in candidates:
            try:
                parse_config("", [*candidate, f"--resume={copy}"], *classes)
            except UserError as error:
                reason = str(error).replace(copy, address)
                raise UserError(f"{reason}; {run} stays as it is") from error


def find_run(
    run: Path, policy: Literal["auto", "must", "never"], cloud: str
) -> Path | None:
    """The checkpoint that a run goes on from, downloaded if need be; None if the run begins.

    Args:
        run: its folder, which has the same name in the cloud.
        policy: see resume_policy in lightning_train.py.
        cloud: the folder of all runs there; empty for none.
    """
    copies = []
    outage = None
    if cloud:
        run_in_cloud = CloudRun(f"{cloud}/{run.name}", run)
        # Outside of the lock: all ranks of a machine wait for a silent cloud at the same time.
        try:
            copies = run_in_cloud.copies()
        except UserError as error:
            outage = error
    with lock(run, "lock", blocking=True):
        # One process of a machine downloads.
        checkpoint, step = newest_intact(run / "checkpoints")
        if policy == "never" and (checkpoint or copies):
            text = "a checkpoint, here or in the cloud (resume_policy: never)"
            raise UserError(f"{run.name} has {text}")
        if copies:
            try:
                run_in_cloud.download_newer_than(step)
            except UserError as error:
                outage = error
        if outage and not checkpoint:  # to begin again could overwrite what is there
            raise outage
        if outage:
            print(f"resume    from the disk, because of {outage}", flush=True)
        # What has arrived, also before an error, is checked like any other file.
        checkpoint, _ = newest_intact(run / "checkpoints")
    if not checkpoint and list(run.glob("checkpoints/*.damaged")):
        raise UserError(
            f"{run} has no checkpoint that is intact; move it away, or take another run_name,"
            " to begin again"
        )
    if policy == "must" and not checkpoint:
        raise UserError(
            f"{cloud or run.parent}/{run.name}: no checkpoint (resume_policy: must)"
        )
    return checkpoint
