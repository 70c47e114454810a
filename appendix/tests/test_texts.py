"""The READMEs: generated parts are fresh, links lead somewhere, commands are understood."""

import json
import re
import subprocess
import sys
from pathlib import Path

import measure
import pytest
from measure import ROOT

READMES = sorted({*ROOT.glob("README.md"), *ROOT.glob("[0-9]_*/README.md")})
CHAPTERS = sorted(ROOT.glob("[0-9]_*"))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
COMMAND = re.compile(r"```bash\n(.*?)```", re.DOTALL)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("readme", READMES, ids=name)
def test_generated_blocks_are_fresh(readme):
    command = [sys.executable, "-m", "cogapp", "--check", "--diff", "-I", str(ROOT / "appendix")]
    command += ["-p", "from blocks import *", str(readme)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("chapter", CHAPTERS, ids=name)
def test_measurements_belong_to_this_code(chapter):
    assert measure.stale(chapter) == [], f"run: appendix/measure.py {chapter.name} --again"


def test_digest_sees_code_and_no_comments(tmp_path):
    (tmp_path / "a.py").write_text('"""Text."""\n\nx = 1\n')
    before = measure.source_digest(tmp_path)
    (tmp_path / "a.py").write_text('"""Other\ntext."""\n# a remark\nx = 1\n')
    assert measure.source_digest(tmp_path) == before
    (tmp_path / "a.py").write_text('"""Text."""\n\nx = 2\n')
    assert measure.source_digest(tmp_path) != before


@pytest.mark.parametrize("readme", READMES, ids=name)
def test_relative_links(readme):
    for target in LINK.findall(readme.read_text()):
        if not target.startswith(("http://", "https://", "#")):
            assert (readme.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("readme", READMES, ids=name)
def test_named_files_exist(readme):
    """Paths in backticks that begin with a folder of the chapter, or are Python files of it."""
    for path in re.findall(
        r"`((?:src|config|tests|results|appendix|\.ci)/[\w./-]*)`", readme.read_text()
    ):
        assert (readme.parent / path).exists() or (ROOT / path).exists(), path


def train_commands() -> list[tuple[Path, str]]:
    found = []
    for readme in READMES:
        for block in COMMAND.findall(readme.read_text()):
            lines = [line.partition("  #")[0].strip() for line in block.splitlines()]
            found += [(readme, line) for line in lines if "pytorch_train.py" in line]
    return found


def test_train_commands_are_understood():
    """Every train command of the texts, parsed in one process: no key that is gone, no typo."""
    endings = {"--help", "--data.dataset.help", "--resume", "--print_config"}  # parse no further
    words = [line.partition("pytorch_train.py")[2].split() for _, line in train_commands()]
    words = [w for w in words if not endings & set(w)]
    assert ["-c", "config/my_dataset.yaml", "--data.dataset.path", "mine.nc"] in words
    program = (
        "import sys, json; sys.path.insert(0, '.'); from src.config import parse_config\n"
        "for words in json.loads(sys.argv[1]):\n    parse_config('', words); print('ok')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(words)],
        cwd=ROOT / "0_setup",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["ok"] * len(words), done.stderr


def test_no_address_of_a_package_index():
    """Such addresses belong to one machine; nothing that is committed may name them."""
    hosts = "|".join(("pypi" + r"\.org", "python" + r"hosted\.org"))
    found = subprocess.run(
        ["git", "grep", "--cached", "-nIE", hosts], cwd=ROOT, capture_output=True, text=True
    )
    assert found.stdout == ""
