"""A window of the ocean from a bucket: the whole NetCDF file, or two chunks of a Zarr store.

  uv run python usecase_cloud_access.py

A training sample needs a small part of the data. A NetCDF file is downloaded first, as a rule: it
says inside where its values lie, so a reader over a network asks many times. A Zarr store says in
a small text file how its arrays are cut into chunks, and each chunk is an object.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import iris_sample_data
import numpy as np
import xarray as xr
from src.data.cloud_build import OCEAN, provide_ocean
from src.data.cloud_fields import open_fields_lazily
from src.data.cloud_store import open_store
from src.errors import one_line_errors
from utils import embedded_file_system, embedded_url, timed

WINDOW = {"time": slice(3, 15), "lat": slice(0, 16), "lon": slice(60, 92)}  # 12 x 16 x 32


def main() -> int:
    """Read the same window both ways and compare. Returns the exit code."""
    provide_ocean(OCEAN, (0, 30))
    netcdf = Path(iris_sample_data.path) / "ostia_monthly.nc"
    fs, url = embedded_file_system(), embedded_url(netcdf.name)
    fs.put(str(netcdf), url)

    with timed() as download, TemporaryDirectory() as folder:
        copy = Path(folder) / netcdf.name
        fs.get_file(url, str(copy))
        with xr.open_dataset(copy) as file:
            names = {"latitude": "lat", "longitude": "lon"}
            theirs = file["surface_temperature"].rename(names).isel(WINDOW).values
    size = fs.size(url)

    store = open_store(OCEAN)
    with timed() as opening:
        fields = open_fields_lazily(store)
    opened = store.counts.copy()
    with timed() as reading:
        ours = fields["surface_temperature"].isel(WINDOW).values
    requests, _, read = store.counts - opened

    np.testing.assert_array_equal(ours, theirs)
    print(f"the window has {ours.nbytes / 1e3:.1f} kB of {fields.nbytes / 1e3:,.1f} kB")
    print(f"NetCDF  the whole file, {size / 1e3:,.1f} kB, {1e3 * download.seconds:.1f} ms")
    print(f"Zarr    {requests} requests, {read / 1e3:,.1f} kB, {1e3 * reading.seconds:.1f} ms")
    print(
        f"        and once, to open it: {opened[0]} requests, {opened[2] / 1e3:,.1f} kB, "
        f"{1e3 * opening.seconds:.1f} ms"
    )
    return 0


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
