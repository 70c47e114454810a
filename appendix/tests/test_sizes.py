"""Files and functions have a size that one can read; what is longer is listed, and may not grow."""

import ast
import subprocess

import pytest
from measure import ROOT

FILE, FUNCTION = 250, 60  # lines; CONTRIBUTING.md says so
# Longer on purpose, up to so many lines. A path is that inside of a chapter, or from the root.
LONGER = {
    "src/model/lightning_module.py": 290,  # all hooks of one LightningModule, two thirds of it code
    "src/cloud_folder.py": 270,  # what is asked of a storage, in one place
    "src/cloud_run.py": 270,  # and what is kept there of a run
    "appendix/check_environment.py": 265,  # a function for each requirement
    "tests/test_api_access.py": 255,
    "appendix/tests/test_carry.py": 300,
    "appendix/tests/test_chapter_diff.py": 270,
    # A loop over one step that is read from top to bottom.
    "pytorch_ddp_train.py: train": 68,
    "benchmark_one.py: measure": 72,
    "benchmark_datapipeline_configurations.py: main": 62,
    "exercises/diverge/check.py: check": 62,
}


def sizes() -> dict[str, int]:
    """Lines of all of the project's Python files, and of their functions."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found: dict[str, int] = {}
    for name in listed.stdout.split():
        if not (ROOT / name).exists():
            continue
        text = (ROOT / name).read_text()
        short = name.partition("/")[2] if name[0].isdigit() else name
        found[short] = max(found.get(short, 0), len(text.splitlines()))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno
                key = f"{short}: {node.name}"
                found[key] = max(found.get(key, 0), node.end_lineno - node.lineno + 1)
    return found


@pytest.mark.parametrize(("kind", "limit"), [("file", FILE), ("function", FUNCTION)])
def test_sizes(kind, limit):
    found = {
        name: lines for name, lines in sizes().items() if (": " in name) == (kind == "function")
    }
    assert len(found) > 300
    too_long = {n: lines for n, lines in found.items() if lines > LONGER.get(n, limit)}
    assert not too_long, f"longer than {limit} lines: {too_long}"


def test_list_is_not_longer_than_it_has_to_be():
    found = sizes()
    for name in LONGER:
        assert found.get(name, 0) > (FUNCTION if ": " in name else FILE), (
            f"{name} may leave the list"
        )
