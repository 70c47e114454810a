"""Secrets come from the environment, or from a file .env that git ignores; from nowhere else."""

import stat

from dotenv import load_dotenv

from src.config import CHAPTER


def load_environment() -> None:
    """Set the variables of .env, in the chapter's folder and in the one round it.

    What is set already stays. A file further up belongs to something else.
    """
    for folder in (CHAPTER, CHAPTER.parent):
        path = folder / ".env"
        load_dotenv(path)
        if path.exists() and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            print(f"{path} can be read by others: chmod 600 {path}", flush=True)
