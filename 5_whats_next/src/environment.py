"""Secrets come from the environment, or from a file .env that git ignores; from nowhere else."""

import stat
from pathlib import Path

from dotenv import find_dotenv, load_dotenv


def load_environment() -> None:
    """Set the variables of .env, in this folder or above; those that are set already stay."""
    path = find_dotenv(usecwd=True)
    load_dotenv(path)
    if path and Path(path).stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        print(f"{path} can be read by others: chmod 600 {path}", flush=True)
