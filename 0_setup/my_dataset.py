"""Your own data: fields from a NetCDF file with axes for time, latitude and longitude."""

from typing import Any

import xarray as xr

from src.data.pytorch_dataset import Split, WindowDataset


class MyDataset(WindowDataset):
    """Windows of some variables of a NetCDF file.

    Args:
        split: "train" or "val".
        path: of the file.
        variables: those to use.
        settings: window, strides and periods of WindowDataset.
    """

    def __init__(
        self, split: Split, path: str, variables: list[str], **settings: Any
    ) -> None:
        # WindowDataset expects the axes time, lat and lon: rename those of your file here.
        fields = xr.load_dataset(path).rename(latitude="lat", longitude="lon")
        super().__init__(
            fields[variables],
            split,
            **settings,
        )
