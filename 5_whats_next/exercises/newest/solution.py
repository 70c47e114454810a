"""The content says which step a file is of, and whether it is whole: names and times do not."""

from pathlib import Path

from src.checkpoint_files import digest, read_manifest


def newest(folder: Path) -> Path | None:
    """The newest of the checkpoints ``*.ckpt`` in a folder; None if there is none."""
    steps = {entry.sha256: entry.step for entry in read_manifest(folder)}
    digests = {path: digest(path) for path in folder.glob("*.ckpt")}
    intact = [path for path in digests if digests[path] in steps]
    return max(intact, key=lambda path: steps[digests[path]], default=None)
