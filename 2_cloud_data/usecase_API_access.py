"""Data behind a service: fetch them once, month by month, and keep them as a Zarr store.

uv run python usecase_API_access.py --start 2020-01 --end 2020-12 --url output/sst.zarr

The service is Copernicus Marine: uv sync --group copernicus, and your account in .env as
COPERNICUSMARINE_SERVICE_USERNAME and COPERNICUSMARINE_SERVICE_PASSWORD, which the client reads.
"""

import argparse
import importlib
from pathlib import Path

import numpy as np
import xarray as xr
from dotenv import load_dotenv
from src.data.build import build
from src.errors import one_line_errors
from tenacity import retry, stop_after_attempt, wait_random_exponential
from tqdm import tqdm


# A busy service is asked again, after longer and longer waits of random length: clients that failed
# together should not come back together.
@retry(stop=stop_after_attempt(4), wait=wait_random_exponential(max=30), reraise=True)
def fetch(service: str, options: argparse.Namespace, month: np.datetime64) -> xr.Dataset:
    """One month of the variable, in memory, over (time, lat, lon)."""
    module, name = service.split(":")
    fields = getattr(importlib.import_module(module), name)(
        dataset_id=options.dataset,
        variables=[options.variable],
        minimum_longitude=options.west,
        maximum_longitude=options.east,
        minimum_latitude=options.south,
        maximum_latitude=options.north,
        start_datetime=f"{month}-01",
        end_datetime=str((month + 1).astype("datetime64[D]") - 1),
    )
    return fields.rename(latitude="lat", longitude="lon").load()


def main() -> None:
    """Fetch the months that are missing, then write the store."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--service", default="copernicusmarine:open_dataset")
    parser.add_argument("--dataset", default="METOFFICE-GLO-SST-L4-REP-OBS-SST", help="its name")
    parser.add_argument("--variable", default="analysed_sst")
    for name, edge in {"west": -20, "east": 0, "south": -5, "north": 5}.items():
        parser.add_argument(f"--{name}", type=float, default=edge, help="degrees")
    parser.add_argument("--start", type=np.datetime64, required=True, help="first month, 2020-01")
    parser.add_argument("--end", type=np.datetime64, required=True, help="last month")
    parser.add_argument("--url", required=True, help="the store, and the folder of the pages")
    options = parser.parse_args()
    load_dotenv()
    pages = Path(f"{options.url}.pages")
    pages.mkdir(parents=True, exist_ok=True)
    months = np.arange(options.start, options.end + 1, dtype="datetime64[M]")
    for month in tqdm(months, unit="month", disable=None):
        page = pages / f"{month}.nc"
        if not page.exists():
            # Under another name first: what a kill leaves behind is not taken for a page.
            fetch(options.service, options, month).to_netcdf(page.with_suffix(".part"))
            page.with_suffix(".part").replace(page)
    fields = xr.open_mfdataset([pages / f"{month}.nc" for month in months], chunks={})
    fields = fields[[options.variable]].drop_attrs(deep=False)
    build(options.url, fields, (16, 128, 128), (0, fields.sizes["time"] * 4 // 5))
    print(f"finished {options.url}: {dict(fields.sizes)}")


if __name__ == "__main__":
    with one_line_errors():
        main()
