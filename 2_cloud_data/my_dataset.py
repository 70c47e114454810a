"""Your own data: fields from a NetCDF file with axes for time, latitude and longitude."""

import xarray as xr

from src.data.pytorch_dataset import Split, WindowDataset
from src.data.windows import Period, Window


class MyDataset(WindowDataset):
    """Windows of some variables of a NetCDF file; WindowDataset says what the arguments mean."""

    def __init__(
        self,
        split: Split,
        path: str,
        variables: list[str],
        window: Window,
        train_stride: Window,
        train_period: Period,
        val_period: Period,
    ) -> None:
        # WindowDataset expects the axes time, lat and lon: rename those of your file here.
        with xr.open_dataset(path) as file:
            fields = file[variables].load()
        fields = fields.rename(latitude="lat", longitude="lon")
        stride = train_stride if split == "train" else window
        super().__init__(fields, split, window, stride, train_period, val_period)
