"""Data behind a service: fetch a region and a period once, and keep them as a Zarr store.

uv run python usecase_API_access.py --start 2020-01 --end 2020-12 --url output/sst.zarr

The service is Copernicus Marine: uv sync --group copernicus, and your account in .env as
COPERNICUSMARINE_SERVICE_USERNAME and COPERNICUSMARINE_SERVICE_PASSWORD, which the client reads.
"""

import argparse
import pkgutil
from typing import Any

import numpy as np
from dotenv import load_dotenv
from tenacity import (
    retry,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from src.data.build import build
from src.errors import UserError, one_line_errors


# A busy service is asked again, after longer and longer waits of random length: clients that failed
# together should not come back together. A wrong password is another error, and ends at once.
@retry(
    retry=retry_if_exception_type(OSError),
    stop=stop_after_attempt(4),
    wait=wait_random_exponential(max=30),
    reraise=True,
)
def fetch(open_dataset: Any, options: argparse.Namespace) -> None:
    """Write the store; what an earlier try has written is not asked for again."""
    fields = open_dataset(
        dataset_id=options.dataset,
        variables=[options.variable],
        minimum_longitude=options.box[0],
        maximum_longitude=options.box[1],
        minimum_latitude=options.box[2],
        maximum_latitude=options.box[3],
        start_datetime=f"{options.start}-01",
        end_datetime=f"{options.end + 1}-01",  # counts in months
    )
    # Where the service has nothing in the period, it gives the day that comes next to it.
    fields = fields.sel(time=slice(str(options.start), str(options.end)))
    fields = fields[[options.variable]].rename(latitude="lat", longitude="lon")
    # The attributes hold the request, so that another request does not continue this store.
    request = vars(options).items()
    fields.attrs = {name: str(value) for name, value in request}
    days = fields["time"].dt.strftime("%Y-%m-%d").values
    num_train = len(days) * 4 // 5
    train_period = (days[0], days[num_train - 1])
    build(options.url, fields, (16, 128, 128), train_period)


def main() -> None:
    """Read the request, and fetch."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument(
        "--service", default="copernicusmarine:open_dataset", help="%(default)s"
    )
    parser.add_argument(
        "--dataset", default="METOFFICE-GLO-SST-L4-REP-OBS-SST", help="%(default)s"
    )
    parser.add_argument("--variable", default="analysed_sst", help="%(default)s")
    parser.add_argument(
        "--box", type=float, nargs=4, default=[-20, 0, -5, 5], help="W, E, S, N"
    )
    parser.add_argument(
        "--start", type=np.datetime64, required=True, help="first month, 2020-01"
    )
    parser.add_argument("--end", type=np.datetime64, required=True, help="last month")
    parser.add_argument(
        "--url", required=True, help="the store, as build_store.py takes it"
    )
    options = parser.parse_args()
    load_dotenv()  # before the import: the client looks for the account then
    try:
        open_dataset = pkgutil.resolve_name(options.service)
    except ImportError as error:
        raise UserError(f"{error}: uv sync --group copernicus") from error
    fetch(open_dataset, options)


if __name__ == "__main__":
    with one_line_errors():
        main()
