"""Where a run goes on: the newest intact checkpoint, on the disk or in the cloud."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from filelock import FileLock

from src.callbacks import storage_path
from src.checkpoint_files import newest_intact, set_aside
from src.cloud_folder import CloudFolder, filesystem_of
from src.cloud_run import fetch, is_newer, run_url
from src.config import CHAPTER, run_folder
from src.data.cloud_errors import CloudError
from src.errors import UserError
from src.lightning_logger import RunLogger
from src.lightning_ranks import early_rank
from src.lightning_settings import LightningSettings, run_to_resume

ResumePolicy = Literal["auto", "must", "never"]
LOOK = 7.0  # seconds to ask the cloud for a run


def say(line: str) -> None:
    """Print a line, once for all processes of this machine."""
    if early_rank() == 0:
        print(f"resume    {line}", flush=True)


def is_url(text: str) -> bool:
    return "://" in text


def bring_back(arguments: Sequence[str], option: str = "--resume") -> list[str]:
    """The command line with a run's address in the cloud replaced by its local folder.

    If the cloud has more of the run than the disk, it is downloaded first: once for each machine,
    the other processes wait. Raises UserError if there is nothing to go on from.
    """
    arguments = [part for word in arguments for part in split(word, option)]
    if option not in arguments[:-1]:
        return arguments
    place = arguments.index(option) + 1
    url = arguments[place].rstrip("/")
    if is_url(url):
        output = value_of(arguments, "--trainer.output_dir") or "output"
        folder = CHAPTER / output / url.rpartition("/")[2]
        if not bring_if_newer(CloudFolder(url, filesystem_of(url)), folder) and not folder.is_dir():
            raise UserError(f"{option}: {url} holds no checkpoint to go on from")
        if option == "--resume":
            arguments[place] = str(folder)
        else:
            arguments[place] = str(choose(folder) or folder / "checkpoints" / "last.ckpt")
    return arguments


def split(word: str, option: str) -> list[str]:
    """``--option=value`` as two words."""
    name, equals, value = word.partition("=")
    return [name, value] if equals and name in (option, "--trainer.output_dir") else [word]


def value_of(arguments: Sequence[str], option: str) -> str:
    """What follows an option; empty if it is not there."""
    return arguments[arguments.index(option) + 1] if option in arguments[:-1] else ""


def bring_if_newer(cloud: CloudFolder, folder: Path) -> bool:
    """Download a run unless the disk has as many steps of it; whether it was downloaded."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{folder.name}.lock"):
        if not is_newer(cloud, folder, LOOK):
            return False
        # A folder that is complete or not there: whoever looks for a run must not find a half.
        new = folder if folder.is_dir() else folder.with_name(f".{folder.name}.part")
        for path in set_damaged_aside(new / "checkpoints"):
            say(f"{path} is damaged, and has been set aside")
        try:
            for line in fetch(cloud, new, name=folder.name):
                say(line)
        except BaseException:
            if new != folder:
                shutil.rmtree(new, ignore_errors=True)
            raise
        if new != folder:
            new.replace(folder)
        return True


def set_damaged_aside(checkpoints: Path) -> list[Path]:
    """Rename damaged files, so that they never take the place of an intact one."""
    return [set_aside(path) for path in newest_intact(checkpoints)[2]]


def choose(folder: Path) -> Path | None:
    """The checkpoint that a run goes on from: the newest that is intact."""
    checkpoints = folder / "checkpoints"
    path, step, damaged = newest_intact(checkpoints)
    for one in damaged:
        if early_rank() == 0:
            set_aside(one)
        say(f"{one.name} is damaged (its SHA-256 is not in manifest.json), and has been set aside")
    if path and damaged:
        say(f"goes on from {path.name}, step {step}")
    if path is None and damaged:
        raise UserError(f"{checkpoints} holds no intact checkpoint, and no copy in the cloud")
    return path


def named_run(
    name: str, policy: ResumePolicy, output_dir: str, cloud_storage_path: str | None
) -> tuple[Path, Path | None]:
    """The folder of the run with this name, and the checkpoint that it goes on from.

    Args:
        name: of the run's folder, on the disk and in the cloud.
        policy: auto goes on if there is something to go on from, must demands it, never forbids it.
        output_dir: where runs are.
        cloud_storage_path: where their copies are; null means nowhere.

    Raises:
        UserError: the policy does not fit what is there.
    """
    if not name or name.startswith(".") or "/" in name:
        raise UserError(f"trainer.run_name: {name!r} is no name for a folder")
    folder = CHAPTER / output_dir / name
    if cloud_storage_path:
        url = run_url(cloud_storage_path, name)
        look_in_cloud(url, folder, policy)
    checkpoint = choose(folder) if folder.is_dir() else None
    if policy == "must" and checkpoint is None:
        raise UserError(
            f"trainer.resume_policy: must, but the run {name} has no checkpoint in {folder}"
            + (f" or {run_url(cloud_storage_path, name)}" if cloud_storage_path else "")
        )
    if policy == "never" and checkpoint is not None:
        raise UserError(
            f"trainer.resume_policy: never, but the run {name} has a checkpoint, {checkpoint}; "
            "choose another trainer.run_name, or auto"
        )
    return folder, checkpoint


def look_in_cloud(url: str, folder: Path, policy: ResumePolicy) -> None:
    """Download what the cloud has more of a run. If it cannot be asked, the disk has to do."""
    try:
        bring_if_newer(CloudFolder(url, filesystem_of(url)), folder)
    except CloudError as error:
        if policy == "never" or not folder.is_dir():
            raise  # a run that begins anew would lose what may be there
        say(f"the cloud cannot be asked, so the disk has to do ({error})")


def where_to_begin(
    resume: str | None, settings: LightningSettings, option: str = "--resume"
) -> tuple[Path | None, Path | None]:
    """The run's folder (None for one that the logger makes up), and the checkpoint to go on from.

    Either ``resume`` names a run or a checkpoint, or torchrun has restarted its processes, or the
    run has a name.
    """
    if resume and not Path(resume).suffix:
        named = run_folder(resume)
        if newest := choose(named):
            return named, newest
    folder, checkpoint = run_to_resume(resume, settings.output_dir, option)
    if folder and not resume:  # a restart
        return folder, choose(folder)
    if folder or not settings.run_name:
        return folder, checkpoint
    path = storage_path(settings.cloud_storage_path)
    return named_run(settings.run_name, settings.resume_policy, settings.output_dir, path)


def named_logger(logger: RunLogger, folder: Path | None) -> RunLogger:
    """The logger, for a new run whose folder has a name."""
    if folder and not (folder / "config.yaml").is_file():
        if early_rank() == 0:
            (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        logger.folder, logger.is_new = folder, True
    return logger
