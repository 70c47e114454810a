"""The READMEs: generated parts are fresh, links lead somewhere, commands are understood."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import measure
import pytest
import way
from forks import forks
from measure import ROOT

APPENDIX = ROOT / "appendix" / "README.md"
PLACES = ("*.md", "[0-9]_*/README.md", "[0-9]_*/*/README.md", "appendix/README.md")
READMES = sorted(path for place in PLACES for path in ROOT.glob(place))
CHAPTERS = sorted(ROOT.glob("[0-9]_*"))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
COMMAND = re.compile(r"```bash\n(.*?)```", re.DOTALL)
INLINE = re.compile(r"`(uv run [^`]+)`")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def checked() -> dict[str, str]:
    """What cog says of each README; one process checks them all, for they share much."""
    command = [sys.executable, "-m", "cogapp", "--check", "--diff", "-I", str(ROOT / "appendix")]
    command += ["-p", "from blocks import *", *map(str, READMES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    parts = re.split(r"^Checking (\S+)", done.stdout, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True)) | {"errors": done.stderr}


@pytest.mark.slow
@pytest.mark.parametrize("readme", READMES, ids=name)
def test_generated_blocks_are_fresh(readme, checked):
    said = checked.get(str(readme))
    assert said == "\n", f"{said}\n{checked['errors']}"


@pytest.mark.parametrize("chapter", CHAPTERS, ids=name)
def test_measurements_belong_to_this_code(chapter):
    assert measure.stale(chapter) == [], f"run: appendix/measure.py {chapter.name} --again"


def test_spelling():
    """Of texts, code, settings and job files."""
    kinds = (
        "*.md",
        "*.py",
        "*.yaml",
        "*.yml",
        "*.toml",
        "*.sbatch",
        "*.env.example",
        "*Dockerfile",
    )
    listed = subprocess.run(
        ["git", "ls-files", *kinds], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = [name for name in listed.stdout.split() if (ROOT / name).exists()]
    command = [sys.executable, "-m", "codespell_lib", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_picture_of_the_whole_way_is_fresh():
    assert way.draw() == way.PICTURE.read_text(), "run: appendix/way.py"


def test_digest_sees_code_and_no_comments(tmp_path):
    (tmp_path / "a.py").write_text('"""Text."""\n\nx = 1\n')
    before = measure.source_digest(tmp_path)
    (tmp_path / "a.py").write_text('"""Other\ntext."""\n# a remark\nx = 1\n')
    assert measure.source_digest(tmp_path) == before
    (tmp_path / "a.py").write_text('"""Text."""\n\nx = 2\n')
    assert measure.source_digest(tmp_path) != before


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page, outside of its code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("readme", READMES, ids=name)
def test_relative_links(readme):
    """The file is there, and so is the heading, or the line, in it."""
    for target in LINK.findall(readme.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        page = readme.parent / path if path else readme
        assert page.exists(), target
        if re.fullmatch(r"L\d+", anchor):
            assert int(anchor[1:]) <= len(page.read_text().splitlines()), target
        elif anchor:
            assert anchor in anchors(page), target


def test_quoted_messages_are_in_the_code():
    """The appendix quotes what the programs print; … stands for what differs."""
    table = APPENDIX.read_text().partition("## What goes wrong")[2].partition("## Further")[0]
    quoted = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    assert len(quoted) >= 12
    files = [*ROOT.glob("5_whats_next/src/**/*.py"), *ROOT.glob("[0-9]_*/*.py")]
    # As it is printed: literals that follow each other are one, and what is put in is "…".
    code = "\n".join(path.read_text() for path in files)
    code = re.sub(r'"\s*\n\s*f?"', "", code)
    for message in quoted:
        parts = [re.escape(piece.strip()) for piece in message.split("…")]
        assert re.search("[^\\n]*?".join(parts), code), message


@pytest.mark.parametrize("readme", READMES, ids=name)
def test_named_files_exist(readme):
    """Paths in backticks that begin with a folder of the chapter, or are Python files of it."""
    for path in re.findall(
        r"`((?:src|config|tests|results|appendix|\.ci)/[\w./-]*)`", readme.read_text()
    ):
        assert (readme.parent / path).exists() or (ROOT / path).exists(), path


TRAIN_COMMAND = re.compile(r"(pytorch_train\.py|pytorch_ddp_train\.py|lightning_\w+)")


def train_commands(chapter: Path) -> list[tuple[str, list[str]]]:
    """Scripts and arguments of the chapter's README; the root's are chapter 0's."""
    found = []
    readmes = [chapter / "README.md", *([ROOT / "README.md"] if chapter == CHAPTERS[0] else [])]
    blocks = [block for readme in readmes for block in COMMAND.findall(readme.read_text())]
    for block in blocks + INLINE.findall(readmes[0].read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            words = line.partition("  #")[0]
            match = TRAIN_COMMAND.search(words)
            if match and "unittest" not in words:
                script, arguments = match[1].removesuffix(".py"), words[match.end() :]
                found.append((script, shlex.split(arguments.removeprefix(".py"))))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("chapter", CHAPTERS, ids=name)
def test_train_commands_are_understood(chapter):
    """Every train command of the texts: no key that is gone, no typo."""
    known = ("pytorch_train", ["-c", "config/my_dataset.yaml", "--data.dataset.path", "mine.nc"])
    assert known in train_commands(CHAPTERS[0])
    # These end the parsing, or need a run that is there.
    endings = {"--help", "--data.dataset.help", "--resume", "--print_config"}
    commands = [pair for pair in train_commands(chapter) if not endings & set(pair[1])]
    assert len(commands) >= 5
    script = ROOT / "appendix" / "parse_commands.py"
    code, printed = forks().run(chapter, [str(script), json.dumps(commands)])
    assert code == 0, printed
    assert printed.splitlines() == ["ok"] * len(commands)


@pytest.mark.parametrize("readme", READMES, ids=name)
def test_commands_inside_of_sentences(readme):
    """Their scripts are there and have the options, as far as one can see without running them."""
    folders = [readme.parent, ROOT]
    if readme.parent in (ROOT, ROOT / "appendix"):  # they say in words which chapter is meant
        folders += CHAPTERS
    for command in INLINE.findall(readme.read_text()):
        words = shlex.split(command)
        for word in words:
            if re.fullmatch(r"[\w./]+\.(py|yaml)", word) and not word.startswith("mine"):
                assert any((folder / word).exists() for folder in folders), command
        script = next((word for word in words if word.endswith(".py")), "")
        found = [folder / script for folder in folders if script and (folder / script).is_file()]
        if not found or "pytest" in words or TRAIN_COMMAND.search(command):
            continue
        code = "".join(path.read_text() for path in found[0].parent.glob("*.py"))
        for option in words[words.index(script) :]:
            if option.startswith("--") and "." not in option and option != "--help":
                key = option[2:].partition("=")[0]
                there = f'"--{key}"' in code or re.search(rf"\b{key.replace('-', '_')}:", code)
                assert there, f"{command}: {option}"


def test_no_address_of_a_package_index():
    """Such addresses belong to one machine; nothing that is committed may name them."""
    hosts = "|".join(("pypi" + r"\.org", "python" + r"hosted\.org"))
    found = subprocess.run(
        ["git", "grep", "--cached", "-nIE", hosts], cwd=ROOT, capture_output=True, text=True
    )
    assert found.stdout == ""
