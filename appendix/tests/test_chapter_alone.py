"""A chapter's folder, copied somewhere else, has all that its command needs."""

import shutil
import subprocess
from collections.abc import Iterator

import pytest
from forks import Forks
from measure import ROOT
from terminal import readers_environment

COMMANDS = {
    "0_setup": "pytorch_train.py",
    "1_multi_gpu": "lightning_train.py",
    "2_cloud_data": "lightning_train.py",
    "3_data_pipeline": "lightning_train.py",
    "4_model_profiling": "lightning_train.py",
    "5_whats_next": "lightning_train.py",
}


def test_all_chapters_are_here():
    assert list(COMMANDS) == sorted(path.name for path in ROOT.glob("[0-9]_*"))


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    found = Forks(readers_environment() | {"WANDB_MODE": "disabled"})
    yield found
    found.close()


@pytest.mark.slow
@pytest.mark.parametrize("chapter", COMMANDS)
def test_a_chapter_alone_trains(chapter, forks, tmp_path):
    """With the default config but for the number of steps; in the folder itself."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", chapter], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / name)
    words = [COMMANDS[chapter], "--trainer.max_steps=2"]
    code, printed = forks.run(tmp_path / chapter, words)
    assert code == 0, printed
    assert "stopped after step 2" in printed
    assert (tmp_path / chapter / "output" / "run_1" / "checkpoints").is_dir()
