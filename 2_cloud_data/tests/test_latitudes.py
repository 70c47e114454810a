"""Weights by the cosine of latitude, in scores and in the loss."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import xarray as xr
from torch.testing import assert_close

from src.data.cube import cube_fields
from src.data.pytorch_dataset import DummyDataset, OceanDataset, WindowDataset
from src.data.store import named_axes
from src.data.windows import has_degrees
from src.evaluation import latitude_weights, squared_error
from src.model.lightning_module import AutoencoderModule

PERIODS = {"train_period": ("1900-01", "1901-04"), "val_period": ("1901-09", "1901-12")}


def globe(window=(4, 180, 8), stride=(2, 3, 5), axis="lat", **lat) -> WindowDataset:
    """One degree from pole to pole; its axis has this name and these attributes."""
    fields = cube_fields((24, 180, 36), (24, 180, 36))[["salinity"]].load()
    fields["lat"].attrs = lat
    fields = named_axes(fields.rename(lat=axis))
    return WindowDataset(fields, "train", window, stride, **PERIODS)


def test_a_score_is_a_mean_over_the_area():
    """Poleward of 60° lies 1 - sin 60° of the sphere. Broken by: no cosine: 1/3."""
    dataset = globe()
    dataset.grid.lat = np.arange(180) - 89.5  # the middles of the cells
    index = torch.tensor([0])
    x = torch.zeros(1, *dataset.sample_shape)
    guess = torch.zeros_like(x)
    guess[:, :, :, np.abs(dataset.grid.lat) > 60] = 1
    weights = latitude_weights(dataset, index)
    error, area = squared_error(guess, x, torch.ones_like(x, dtype=torch.bool), weights)
    assert (error / area).item() == pytest.approx(1 - math.sin(math.pi / 3), abs=1e-4)


def test_where_latitudes_make_no_difference_nothing_is_weighted():
    """A band at the equator, images, km, numbers. Broken by: no 0.9, grid is None, has_degrees."""
    others = globe(units="km"), globe(axis="y")
    assert not has_degrees(xr.Dataset({"a": (("lat", "lon"), np.zeros((9, 9)))}), "lat")
    for dataset in (OceanDataset("val"), DummyDataset("val"), *others):
        assert latitude_weights(dataset, torch.tensor([0, 1])).equal(torch.ones(()))


@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_is_weighted_when_told(weighted):
    """By each sample's own latitudes. Broken by: no weights in training_step, or no `scored *
    weights` in the model; in latitude_weights, no `% len(latitudes)`, or no `latitudes.step`.
    """
    dataset = globe(window=(4, 16, 8), stride=(12, 16, 36))
    index = torch.arange(len(dataset))
    x = torch.stack([dataset[i][0] for i in index.tolist()])
    module = AutoencoderModule(patch_size=[2, 4, 4], latitude_weighted=weighted)
    module.log = lambda *_, **__: None
    data = SimpleNamespace(train_set=dataset)
    trainer = SimpleNamespace(datamodule=data, world_size=1, current_epoch=0)
    module.trainer = trainer
    module.configure_model()
    loss = module.training_step((x, index), 0)

    output = module.model(x, index, 0)
    weights = torch.ones(())
    if weighted:
        latitudes = np.stack([dataset.coordinates(i)[1] for i in index.tolist()])
        weights = torch.tensor(np.cos(np.deg2rad(latitudes))).float()
        weights = weights[:, None, None, :, None]
    error, area = squared_error(output.prediction, x, output.hidden, weights).sum(1)
    assert_close(loss, (error / area).float())
    assert weights.min() < 0.2 or not weighted
