"""The checkpoint that a run goes on from.

``newest`` takes the file that was written last. A copy to another disk, or a download, gives files
new times. And the disk may have changed one: a flipped bit loads without a word, and the run goes
on from wrong weights. manifest.json in the folder lists name, step, size and SHA-256 of whatever
was written whole; a file may have got another name since. Take the file with the most steps among
those whose content is as it was written. src/checkpoint_files.py has functions that help.
"""

from pathlib import Path


def newest(folder: Path) -> Path | None:
    """The newest of the checkpoints ``*.ckpt`` in a folder; None if there is none."""
    return max(folder.glob("*.ckpt"), key=lambda path: path.stat().st_mtime, default=None)
