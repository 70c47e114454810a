"""Secrets are planted, trainings run and fail, and everything that is left is searched."""

import inspect
import os
import secrets
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import lightning_train
import lightning_trainer
import pytest
import torch
from src import environment
from src.config import CHAPTER
from src.data import cloud_store
from src.environment import SECRETS
from src.lightning_errors import one_line_errors

from tests.lightning_runs import OCEAN

pytestmark = pytest.mark.slow
SHORT = [*OCEAN[:-1], "--data.dataset.train_stride=[6,2,80]", "--trainer.max_epochs=1"]
CLI = [word for word in SHORT if "picture_every" not in word]
# As a script does that takes its variables from a .env; this one is not in the chapter's folder.
START = """
import runpy, sys
from pathlib import Path
import src.environment as environment
environment.env_file = lambda: Path(sys.argv[1])
environment.load_environment()
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def planted(tmp_path, monkeypatch) -> dict[str, str]:
    """A value for each secret: every second one in the environment, the others in .env."""
    values = {name: f"planted{secrets.token_hex(18)}" for name in SECRETS}
    for name in SECRETS[::2]:
        monkeypatch.setenv(name, values[name])
    for name in SECRETS[1::2]:
        monkeypatch.delenv(name, raising=False)
    lines = [f"{name}={values[name]}\n" for name in SECRETS[1::2]]
    (tmp_path / ".env").write_text("".join(lines))
    home = tmp_path / "home"
    home.mkdir()
    for name in ("HOME", "TMPDIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.setenv("WANDB_MODE", "offline")
    return values


def start(tmp_path: Path, *words: str, **variables: str) -> subprocess.CompletedProcess:
    """A script of the chapter, which may leave a core file."""
    code = f'ulimit -c unlimited; exec "$@" > {tmp_path}/stdout 2> {tmp_path}/stderr'
    command = [sys.executable, "-c", START, str(tmp_path / ".env"), *words]
    return subprocess.run(
        ["bash", "-c", code, "x", *command],
        cwd=tmp_path,
        env=os.environ | variables | {"PYTHONPATH": str(CHAPTER)},
        timeout=240,
        check=False,
    )


def everything(folder: Path) -> dict[str, bytes]:
    """Every file but the .env, and what is inside of archives, checkpoints included."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and path != folder / ".env":
            found[str(path)] = path.read_bytes()
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    found |= {f"{path}/{name}": archive.read(name) for name in archive.namelist()}
    return found


def assert_not_told(folder: Path, values: dict[str, str]) -> list[str]:
    """No value of a secret anywhere; returns the names of what was searched."""
    found = everything(folder)
    for name, value in values.items():
        told = [place for place, content in found.items() if value.encode() in content]
        assert not told, f"{name} in {told}"
    return list(found)


def test_training_tells_no_secret(planted, tmp_path):
    """From the server of this chapter, with wandb's files, a checkpoint, and the configuration."""
    done = start(tmp_path, "lightning_train", *SHORT, f"--trainer.output_dir={tmp_path}/output")
    assert done.returncode == 0, (tmp_path / "stderr").read_text()
    assert "epoch 1 of 1" in (tmp_path / "stdout").read_text()
    assert_complete(assert_not_told(tmp_path, planted))


def assert_complete(places: list[str]) -> None:
    """There was something to search in."""
    for part in ("last.ckpt/", "config.yaml", "metrics.csv", ".wandb", "debug-internal.log"):
        assert any(part in place for place in places), part


@pytest.fixture
def loaded(planted, tmp_path, monkeypatch) -> dict[str, str]:
    """The same for this process, which saves the seconds that importing torch takes."""
    for name in planted:
        monkeypatch.setenv(name, os.environ.get(name, ""))  # as before when the test ends
        if not os.environ[name]:
            os.environ.pop(name)
    monkeypatch.setattr(environment, "env_file", lambda: tmp_path / ".env")
    environment.load_environment()
    assert all(os.environ[name] == value for name, value in planted.items())
    return planted


def run_here(monkeypatch, capfd, tmp_path: Path, script: ModuleType, *words: str) -> int:
    """The exit code of a script's main(); what it prints is kept beside its files."""
    monkeypatch.setattr(sys, "argv", [script.__name__, *words])
    try:
        with one_line_errors():
            return script.main()
    except SystemExit as end:
        print(end.code, file=sys.stderr)
        return 1
    finally:
        printed = capfd.readouterr()
        (tmp_path / "stdout").write_text(printed.out)
        (tmp_path / "stderr").write_text(printed.err)


def test_command_line_tells_no_secret(loaded, monkeypatch, capfd, tmp_path):
    words = ["fit", *CLI, f"--trainer.logger.init_args.output_dir={tmp_path}/output"]
    assert run_here(monkeypatch, capfd, tmp_path, lightning_trainer, *words) == 0
    assert_complete(assert_not_told(tmp_path, loaded))


def test_failing_training_tells_no_secret(loaded, monkeypatch, capfd, tmp_path):
    """Nobody listens there, and the address itself has a password in it."""
    monkeypatch.setattr(cloud_store, "OPENING", 1.0)
    password = loaded["AZURE_STORAGE_ACCOUNT_KEY"]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://user:{password}@127.0.0.1:9")
    words = [*SHORT, "--data.dataset.url=s3://bucket/x.zarr", f"--trainer.output_dir={tmp_path}/o"]
    assert run_here(monkeypatch, capfd, tmp_path, lightning_train, *words) == 1
    assert (tmp_path / "stderr").read_text().startswith("error: s3://bucket/x.zarr: ")
    assert_not_told(tmp_path, loaded)


def test_url_with_a_password_is_refused(loaded, monkeypatch, capfd, tmp_path):
    url = f"--data.dataset.url=s3://user:{loaded['WANDB_API_KEY']}@bucket/x.zarr"
    words = [*SHORT, url, f"--trainer.output_dir={tmp_path}/o"]
    assert run_here(monkeypatch, capfd, tmp_path, lightning_train, *words) == 1
    assert "credentials" in (tmp_path / "stderr").read_text()
    assert_not_told(tmp_path, loaded)


@pytest.mark.parametrize("script", [lightning_train, lightning_trainer])
def test_secret_in_a_setting_is_refused(loaded, monkeypatch, capfd, tmp_path, script):
    """Before it is parsed, so that no message of the parser repeats it."""
    if "refuse_secrets" not in inspect.getsource(script):
        pytest.skip(f"{script.__name__}.py does not call refuse_secrets")
    words = ["fit"] if script is lightning_trainer else []
    secret = f"--data.dataset.secret={loaded['WANDB_API_KEY']}"
    assert run_here(monkeypatch, capfd, tmp_path, script, *words, secret) == 1
    expected = "error: data.dataset.secret: looks like a secret, and is refused; allowed: none"
    assert (tmp_path / "stderr").read_text().startswith(expected)
    assert_not_told(tmp_path, loaded)


def test_the_search_finds_what_is_hidden(tmp_path):
    """Else the tests above would pass for nothing."""
    torch.save({"x": "planted"}, tmp_path / "last.ckpt")
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inside", "planted" * 50)
    for place in ("last.ckpt", "a.zip"):
        with pytest.raises(AssertionError, match=place):
            assert_not_told(tmp_path, {"X": "planted"})
        (tmp_path / place).unlink()
