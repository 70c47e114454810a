"""What programs here read from the environment: one list, from which everything else is made.

Two rules. The real environment wins over the file .env, so that a cluster, a container or a test
can say otherwise without touching the file. And a secret has no other way in: what is typed on a
command line or written into a YAML file is seen by others, and kept with each run.
"""

import os
import resource
import stat
import subprocess
from pathlib import Path
from typing import NamedTuple

from dotenv import dotenv_values, load_dotenv

CHAPTER = Path(__file__).resolve().parents[1]


class Variable(NamedTuple):
    """A variable that you may set."""

    name: str
    purpose: str
    default: str = "none"  # what holds when it is not set
    secret: bool = False


VARIABLES = (
    Variable("AWS_ENDPOINT_URL", "address of the S3 server", "AWS"),
    Variable("AWS_ENDPOINT_URL_S3", "the same, for S3 alone", "AWS_ENDPOINT_URL"),
    Variable("AWS_ACCESS_KEY_ID", "first half of a key pair for S3", secret=True),
    Variable("AWS_SECRET_ACCESS_KEY", "second half of it", secret=True),
    Variable("AWS_SESSION_TOKEN", "with temporary keys, which come as three", secret=True),
    Variable("AWS_PROFILE", "section of ~/.aws/credentials, in place of keys", "default"),
    Variable("AWS_DEFAULT_REGION", "where the bucket is, for Python's libraries", "us-east-1"),
    Variable("AWS_REGION", "the same, for others", "AWS_DEFAULT_REGION"),
    Variable(
        "CLOUD_STORAGE_PATH", "where checkpoints go; none: nowhere", "s3://embedded/checkpoints"
    ),
    Variable("GOOGLE_APPLICATION_CREDENTIALS", "file of a Google service account"),
    Variable("AZURE_STORAGE_ACCOUNT_NAME", "storage account for az:// and abfs://"),
    Variable("AZURE_STORAGE_ACCOUNT_KEY", "its key", secret=True),
    Variable("AZURE_STORAGE_SAS_TOKEN", "a signature in place of the key", secret=True),
    Variable("AZURE_STORAGE_CONNECTION_STRING", "name and key in one", secret=True),
    Variable("COPERNICUSMARINE_SERVICE_USERNAME", "for chapter 2's downloads"),
    Variable("COPERNICUSMARINE_SERVICE_PASSWORD", "the same", secret=True),
    Variable("WANDB_API_KEY", "your account, for WANDB_MODE=online", secret=True),
    Variable("WANDB_MODE", "offline, online or disabled", "offline"),
    Variable("WANDB_BASE_URL", "a wandb server of your own", "https://api.wandb.ai"),
    # Read when a program starts, which is before .env is.
    Variable("EMBEDDED_S3_FOLDER", "data of s3://embedded; not from .env", "output/s3"),
    Variable("EMBEDDED_S3_ENDPOINT", "a proxy in front of that server"),
    Variable("DASK_SCHEDULER_ADDRESS", "a Dask cluster to read with", "one of its own"),
    Variable("MASTER_PORT", "port where ranks meet, when you start them yourself", "a free one"),
)
SECRETS = tuple(variable.name for variable in VARIABLES if variable.secret)

# Those that torchrun, SLURM and this chapter's campaign set for the processes that they start.
LAUNCHERS = ("KILL_AT", "RANK", "LOCAL_RANK", "SLURM_", "TORCHELASTIC_")


def env_file() -> Path | None:
    """The nearest .env, in this chapter's folder or above; None if there is none."""
    found = (folder / ".env" for folder in (CHAPTER, *CHAPTER.parents))
    return next((path for path in found if path.is_file()), None)


def load_environment() -> None:
    """Take from .env what is not set yet; call it before anything else reads the environment.

    A process that crashes would also write all of its memory, secrets included, to a core file:
    from here on it and its children write none.
    """
    if path := env_file():
        load_dotenv(path)
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def warnings_about(path: Path | None) -> list[str]:
    """What is wrong with .env and with what is set, each with what to do; never a value."""
    found = file_warnings(path) if path else []
    values = {**(dotenv_values(path) if path else {}), **os.environ}
    pair = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    if [bool(values.get(name)) for name in pair].count(True) == 1:
        found.append(f"{pair[0]} and {pair[1]} belong together, and one of them is missing")
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        if "@" in (values.get(name) or ""):
            found.append(f"{name} has a password in it; set {pair[0]} and {pair[1]} instead")
    key_file = values.get("GOOGLE_APPLICATION_CREDENTIALS")
    if key_file and not Path(key_file).is_file():
        found.append("GOOGLE_APPLICATION_CREDENTIALS names a file that is not there")
    return found


def file_warnings(path: Path) -> list[str]:
    """Who else can read .env, and whether it is on its way to a repository."""
    found = []
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        found.append(f".env can be read by other users: chmod 600 {os.path.relpath(path)}")
    tracked = ["git", "-C", str(path.parent), "ls-files", "--error-unmatch", path.name]
    try:
        if subprocess.run(tracked, capture_output=True, check=False).returncode == 0:
            found.append(
                ".env is tracked by git: git rm --cached .env, and replace every key in it, since "
                "the history keeps them"
            )
    except FileNotFoundError:
        pass  # no git, no repository
    known = {variable.name for variable in VARIABLES}
    unknown = [name for name in dotenv_values(path) if name not in known]
    if unknown:
        found.append(f".env sets {', '.join(unknown)}, which nothing here reads; a typing error?")
    return found


def rows() -> list[tuple[str, str, str, str]]:
    """Name, value, where it comes from and purpose of each variable; no value of a secret.

    Call it before ``load_environment``, after which all come from the environment.
    """
    path = env_file()
    kept = dotenv_values(path) if path else {}
    found = []
    for variable in VARIABLES:
        inside, outside = kept.get(variable.name), os.environ.get(variable.name)
        value = inside if outside is None else outside
        origin = ".env" if outside is None else "environment"
        if inside is not None and outside not in (None, inside):
            origin = "environment, not .env"
        if value is None:
            shown, origin = f"not set ({variable.default})", ""
        elif variable.secret or "@" in value:
            shown = "set, hidden" if value else "set, empty"
        else:
            shown = value or "set, empty"
        found.append((variable.name, shown, origin, variable.purpose))
    return found
