"""One list of variables, the environment before .env, and settings without secrets."""

import os
import re
import subprocess
import sys
from pathlib import Path

import environment
import pytest
from src import environment as source
from src.config import CHAPTER
from src.environment import LAUNCHERS, SECRETS, VARIABLES, load_environment, warnings_about
from src.errors import UserError
from src.secret_arguments import refuse_secrets

NAMES = {variable.name for variable in VARIABLES}
# Reads; what a program sets for itself, before it starts others, is not for you to set.
READ = re.compile(r"environ(?:\.get\(|\[)\s*f?[\"'](\w+)[\"']\]?(?!\s*=[^=])")
SET_HERE = {"PYTHONPATH"}


@pytest.fixture
def env_file(tmp_path, monkeypatch) -> Path:
    """A .env that is this chapter's, and an environment without any of the variables."""
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that it is as before when the test ends
        os.environ.pop(name)
    path = tmp_path / ".env"
    path.touch(mode=0o600)
    monkeypatch.setattr(source, "env_file", lambda: path)
    monkeypatch.setattr(environment, "env_file", lambda: path)
    monkeypatch.setattr(sys, "argv", ["environment.py"])
    return path


def test_the_example_and_the_list_have_the_same_names():
    text = (CHAPTER / ".env.example").read_text()
    assert re.findall(r"^# ([A-Z0-9_]+)=", text, flags=re.MULTILINE)
    assert set(re.findall(r"^# ([A-Z0-9_]+)=", text, flags=re.MULTILINE)) == NAMES
    assert not re.findall(r"^[^#\n]", text, flags=re.MULTILINE)  # nothing is set in it
    assert len(VARIABLES) == len(NAMES)


def test_what_the_code_reads_is_in_the_list():
    """A new variable belongs into VARIABLES and into .env.example."""
    code = [*CHAPTER.glob("*.py"), *CHAPTER.glob("src/**/*.py")]
    read = {name for path in code for name in READ.findall(path.read_text())}
    assert {"AWS_ENDPOINT_URL", "WANDB_MODE", "LOCAL_RANK"} <= read  # the pattern finds them
    unknown = {name for name in read - NAMES - SET_HERE if not name.startswith(LAUNCHERS)}
    assert not unknown, f"read, but not in src/environment.py: {unknown}"


def test_every_secret_looks_like_one():
    """A variable whose name says that it is a secret is treated as one."""
    for name in NAMES:
        told = re.search("KEY|SECRET|TOKEN|PASSWORD|CONNECTION_STRING", name)
        assert bool(told) == (name in SECRETS), name


def test_the_environment_wins(env_file, monkeypatch):
    env_file.write_text("WANDB_MODE=online\nAWS_REGION=from-file\nAWS_PROFILE=file\n")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("AWS_PROFILE", "")  # empty is said, too
    load_environment()
    assert os.environ["WANDB_MODE"] == "disabled"
    assert os.environ["AWS_REGION"] == "from-file"
    assert os.environ["AWS_PROFILE"] == ""


def test_nearest_file_is_found(tmp_path, monkeypatch):
    """In the chapter's folder, or above; not in the folder that you happen to stand in."""
    chapter = tmp_path / "repository" / "chapter"
    chapter.mkdir(parents=True)
    monkeypatch.setattr(source, "CHAPTER", chapter)
    monkeypatch.chdir(tmp_path)
    above = chapter.parent / ".env"
    above.touch()
    assert source.env_file() == above
    (chapter / ".env").touch()
    assert source.env_file() == chapter / ".env"


def test_table_tells_no_secret(env_file, monkeypatch, capsys):
    env_file.write_text("AWS_ACCESS_KEY_ID=planted1\nAWS_SECRET_ACCESS_KEY=planted2\n")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted3")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://user:planted4@host")
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert environment.main() == 1  # for the password in the URL
    printed = capsys.readouterr().out
    assert "planted" not in printed
    lines = {line.split()[0]: line for line in printed.splitlines() if line.split()}
    assert re.search(r"set, hidden +\.env ", lines["AWS_ACCESS_KEY_ID"])
    assert re.search(r"set, hidden +environment, not .env ", lines["AWS_SECRET_ACCESS_KEY"])
    assert re.search(r"set, hidden +environment ", lines["AWS_ENDPOINT_URL"])
    assert re.search(r"eu-north-1 +environment ", lines["AWS_REGION"])
    assert "not set (offline)" in lines["WANDB_MODE"]
    assert "AWS_ENDPOINT_URL has a password in it" in printed


def test_warnings(env_file, monkeypatch):
    assert warnings_about(env_file) == []
    env_file.write_text("AWS_ACCESS_KEY_ID=planted\nWANDB_KEY=planted\n")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/planted.json")
    env_file.chmod(0o640)
    git = ["git", "-C", env_file.parent]
    subprocess.run([*git, "init", "-q"], check=True)
    assert len(warnings_about(env_file)) == 4
    subprocess.run([*git, "add", "-f", ".env"], check=True)
    found = "\n".join(warnings_about(env_file))
    for part in ("chmod 600", "git rm --cached .env", "WANDB_KEY", "one of them is missing"):
        assert part in found
    assert "GOOGLE_APPLICATION_CREDENTIALS names a file that is not there" in found
    assert "planted" not in found


def test_no_memory_is_written_when_a_process_crashes(tmp_path):
    """A core file would have every secret in it."""
    code = "import resource, os; from src.environment import load_environment as l; l()\n"
    code += "print(resource.getrlimit(resource.RLIMIT_CORE)[0], flush=True); os.abort()"
    process = subprocess.run(
        ["bash", "-c", 'ulimit -c unlimited; exec "$@"', "x", sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(CHAPTER)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.stdout == "0\n", process.stderr
    assert process.returncode == -6
    assert not list(tmp_path.glob("core*"))


REFUSED = [
    ["--data.dataset.secret=planted-1"],
    ["--data.dataset.key", "planted-1"],
    ["--trainer.logger.init_args.api_key=planted-1"],
    ['--data.dataset={"init_args": {"storage_options": {"token": "planted-1"}}}'],
    ["--data.dataset.url=https://user:planted-1@host/store.zarr"],
    ["--trainer.cloud_storage_path", "s3://user:planted-1@bucket/x"],
    ["--data.dataset.url=https://host/store?X-Amz-Signature=planted-1"],
    ["--trainer.output_dir=planted-in-the-environment"],
]


@pytest.mark.parametrize("arguments", REFUSED)
def test_secret_on_the_command_line_is_refused(env_file, monkeypatch, arguments):
    monkeypatch.setenv("WANDB_API_KEY", "planted-in-the-environment")
    with pytest.raises(UserError, match=r"allowed: .*see \.env\.example") as caught:
        refuse_secrets(["--trainer.max_epochs", "3", *arguments])
    key = arguments[0].partition("=")[0].lstrip("-")
    assert str(caught.value).startswith(key)
    assert "\n" not in str(caught.value)
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize("option", ["-c {}", "-c{}", "--config {}", "--config={}"])
@pytest.mark.parametrize(
    "text",
    [
        "data: {dataset: {init_args: {storage_options: {password: planted-1}}}}",
        "trainer: {callbacks: [{init_args: {secret_key: planted-1}}]}",
        "data: {dataset: {init_args: {url: 's3://a:planted-1@bucket/x'}}}",
    ],
)
def test_secret_in_a_file_is_refused(tmp_path, option, text):
    place = tmp_path / "mine.yaml"
    place.write_text(text)
    with pytest.raises(UserError, match=r"see \.env\.example") as caught:
        refuse_secrets(option.format(place).split())
    assert "planted" not in str(caught.value)
    assert str(caught.value).startswith(("data.dataset.init_args", "trainer.callbacks.init_args"))


def test_configurations_of_this_chapter_are_not_refused(env_file, monkeypatch):
    """Words that only look similar, values that are not there, files for the parser to report."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "cpu")  # too short to tell
    for place in CHAPTER.glob("config/*.yaml"):
        refuse_secrets(["-c", str(place), "--trainer.accelerator=cpu", "--data.dataset.key=null"])
    refuse_secrets(["fit", "-c", "absent.yaml", "--model.mask_ratio", "0.5", "--keys=3", "-c"])
