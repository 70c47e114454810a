"""Weights by the cosine of latitude, in scores and in the loss."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import xarray as xr
from torch.testing import assert_close
from torch.utils.data import DataLoader

from src.data.cube import cube_fields
from src.data.pytorch_dataset import DummyDataset, OceanDataset, WindowDataset
from src.data.store import named_axes
from src.data.windows import has_degrees
from src.model.lightning_module import AutoencoderModule
from src.run.evaluation import error_sums, latitude_weights, squared_error

PERIODS = {"train_period": ("1900-01", "1901-04"), "val_period": ("1901-09", "1901-12")}


def globe(window=(4, 180, 8), stride=(2, 3, 5), axis="lat", **lat) -> WindowDataset:
    """One degree from pole to pole; its axis has this name and these attributes."""
    fields = cube_fields((24, 180, 36), (24, 180, 36))[["salinity"]].load()
    fields["lat"].attrs = lat
    fields = named_axes(fields.rename(lat=axis))
    return WindowDataset(fields, "train", window, stride, **PERIODS)


def test_where_latitudes_make_no_difference_nothing_is_weighted():
    """A band at the equator, images, km, numbers. Broken by: no 0.9, grid is None, has_degrees."""
    others = globe(units="km"), globe(axis="y")
    assert not has_degrees(xr.Dataset({"a": (("lat", "lon"), np.zeros((9, 9)))}), "lat")
    for dataset in (OceanDataset("val"), DummyDataset("val"), *others):
        assert latitude_weights(dataset, torch.tensor([0, 1])).equal(torch.ones(()))


@pytest.mark.parametrize("weighted", [False, True])
def test_scores_are_weighted_and_the_loss_when_told(weighted):
    """By each sample's own latitudes. Broken by: no weights in training_step or error_sums, or no
    `scored * weights` in the model; in latitude_weights, no cosine, no `% len(latitudes)`, or no
    `latitudes.step`.
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

    latitudes = np.stack([dataset.coordinates(i)[1] for i in index.tolist()])
    cosines = torch.tensor(np.cos(np.deg2rad(latitudes))).float()
    assert cosines.min() < 0.2
    cosines = cosines[:, None, None, :, None]
    output = module.model(x, index, 0)
    weights = cosines if weighted else torch.ones(())
    error, area = squared_error(output.prediction, x, output.hidden, weights).sum(1)
    assert_close(loss, (error / area).float())
    output = module.model(x, index)
    expected = squared_error(output.prediction, x, output.hidden, cosines)
    sums = error_sums(module.model, DataLoader(dataset, len(dataset)))
    assert_close(sums.float(), expected.float())
