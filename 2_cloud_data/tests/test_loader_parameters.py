"""The loader's parameters as a command."""

import re

import loader_parameters
import pytest
from loader_parameters import SETTINGS, measure, show_draws, try_settings
from src.errors import UserError
from src.reproducibility import worker_init_fn

from tests.cloud_stores import url as url  # a fixture


def test_every_setting_is_one_that_the_loaders_have(monkeypatch):
    """One that changes nothing would measure nothing."""
    assert all(len(settings) <= 1 for settings in SETTINGS.values())
    seen = []
    monkeypatch.setattr(loader_parameters, "SETTINGS", {"a": {}, "b": {"num_workers": 0}})
    monkeypatch.setattr(loader_parameters, "show_draws", lambda init: "")
    monkeypatch.setattr(
        loader_parameters, "try_settings", lambda *a: seen.append(a) or [1.0, 2.0, 0.003, 4.0]
    )
    measure("somewhere", batches=3, step=0.5)
    assert seen == [("somewhere", 3, 0.5, {}), ("somewhere", 3, 0.5, {"num_workers": 0})]


@pytest.mark.slow(copies=True)
def test_draws_of_workers():
    """Without the function both workers draw the same number, with it they do not."""
    same, own = (re.findall(r"draws (\d+)", show_draws(init)) for init in (None, worker_init_fn))
    assert len(same) == len(own) == 2
    assert same[0] == same[1]
    assert own[0] != own[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["no workers", "not persistent"])
def test_settings_on_the_ocean(name):
    first, second, wait, speed = try_settings("s3://embedded/ocean.zarr", 4, 0.01, SETTINGS[name])
    assert min(first, second, wait) >= 0
    assert 0 < speed <= 16 / 0.01  # the model alone takes a hundredth of a second for sixteen


@pytest.mark.parametrize(("batches", "step"), [(0, 1.0), (1, -1.0)])
def test_impossible_numbers(batches, step):
    with pytest.raises(UserError, match="allowed: from 1, from 0"):
        measure(batches=batches, step=step)
