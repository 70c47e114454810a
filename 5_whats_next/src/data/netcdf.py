"""Open fields from a NetCDF file, and say in one line what does not fit."""

from collections.abc import Sequence
from pathlib import Path

import xarray as xr

from src.errors import UserError

AXES = ("time", "lat", "lon")
OTHER_NAMES = {"latitude": "lat", "longitude": "lon"}


def open_fields(path: str | Path, variables: Sequence[str]) -> xr.Dataset:
    """The ``variables`` of a NetCDF file, in memory, over the axes time, lat, lon.

    Axes called latitude and longitude are renamed. Raises UserError if the file cannot be read, or
    lacks a variable.
    """
    try:
        with xr.open_dataset(path) as file:
            missing = [name for name in variables if name not in file.data_vars]
            if missing or not variables:
                names = ", ".join(str(name) for name in file.data_vars)
                raise UserError(
                    f"data.dataset.variables: {missing or 'none'} given, not in {path}; "
                    f"allowed: {names}"
                )
            found = {old: new for old, new in OTHER_NAMES.items() if old in file.variables}
            return file[list(variables)].rename(found).load()
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"data.dataset.path: cannot read {path}: {reason}") from error


def check_axes(fields: xr.Dataset) -> None:
    """Raise UserError unless all variables have the axes time (dates), lat, lon and no other."""
    for name, field in fields.data_vars.items():
        if set(field.dims) != set(AXES):
            raise UserError(
                f"data.dataset: {name} has the axes {', '.join(map(str, field.dims))}; "
                f"allowed: {', '.join(AXES)}; rename them, and select one level of any other"
            )
    try:
        _ = fields["time"].dt
    except (AttributeError, TypeError) as error:
        raise UserError(
            "data.dataset: time is not given as dates; allowed: dates, CF units"
        ) from error
