"""Your own data: monthly fields from a NetCDF file with axes for time, latitude and longitude."""

from src.data.netcdf import open_fields
from src.data.pytorch_dataset import Split, WindowDataset


class MyDataset(WindowDataset):
    """Windows of some variables of a NetCDF file.

    Args:
        split: filled in by the train script.
        path: the file.
        variables: names of the variables to learn.
        window: months, latitudes and longitudes of a sample.
        train_months: first month and first month after the end of the training period.
        val_months: the same for validation, at least one window away.
    """

    def __init__(
        self,
        split: Split,
        path: str,
        variables: list[str],
        window: tuple[int, int, int],
        train_months: tuple[int, int],
        val_months: tuple[int, int],
    ) -> None:
        fields = open_fields(path, variables)
        stride = (1, 4, 4) if split == "train" else window
        super().__init__(fields, split, window, stride, train_months, val_months)
