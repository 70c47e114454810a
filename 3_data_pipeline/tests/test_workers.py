"""A training with workers ends after an error, too; errors.py is that of chapter 0."""

import pytest

from tests.runs import start

BROKEN = """
import lightning_train, src.errors, src.model.lightning_module
src.model.lightning_module.squared_error = None
with src.errors.one_line_errors():
    lightning_train.main()
"""


@pytest.mark.slow
def test_an_error_ends_the_workers(tmp_path):
    """Broken by: no kill in one_line_errors: Python waits for the worker for ever."""
    process = start(tmp_path, "--data.num_workers=1", command=["-c", BROKEN])
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "TypeError: 'NoneType' object is not callable" in output
