"""Data behind a service: fetch a region and a period once, and keep them as a Zarr store.

uv run python usecase_API_access.py --start 2020-01-01 --end 2020-12-31 --url output/sst.zarr

The service is Copernicus Marine: uv sync --inexact --group copernicus, and your account in .env as
COPERNICUSMARINE_SERVICE_USERNAME and COPERNICUSMARINE_SERVICE_PASSWORD, which the client reads.
"""

from dotenv import load_dotenv
from jsonargparse import auto_cli
from tenacity import (
    retry,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from src.data.build import build
from src.run.config import HelpFormatter
from src.run.errors import one_line_errors


# A busy service is asked again, after longer and longer waits of random length: clients that failed
# together should not come back together. A wrong password is another error, and ends at once.
@retry(
    retry=retry_if_exception_type(OSError),
    stop=stop_after_attempt(4),
    wait=wait_random_exponential(max=30),
    reraise=True,
)
def fetch(
    url: str,
    start: str,
    end: str,
    variable: str = "analysed_sst",
    box: tuple[float, float, float, float] = (-20, 0, -5, 5),
    dataset: str = "METOFFICE-GLO-SST-L4-REP-OBS-SST",
) -> None:
    """Write the store; what an earlier try has written is not asked for again.

    Args:
        url: the store, as build_store.py takes it.
        start: first day, such as 2020-01-01.
        end: last day.
        variable: one of the dataset's.
        box: degrees, from west to east, from south to north.
        dataset: the service's name of it.
    """
    request = str(locals())
    load_dotenv()  # before the import: the client looks for the account then
    import copernicusmarine

    fields = copernicusmarine.open_dataset(
        dataset_id=dataset,
        variables=[variable],
        minimum_longitude=box[0],
        maximum_longitude=box[1],
        minimum_latitude=box[2],
        maximum_latitude=box[3],
        start_datetime=start,
        end_datetime=f"{end}T23:59:59",
    )
    # Where the service has nothing in the period, it gives the day that comes next to it.
    fields = fields.sel(time=slice(start, end))
    fields = fields[[variable]].rename(latitude="lat", longitude="lon")
    # So that another request does not continue this store.
    fields.attrs = {"request": request}
    days = fields["time"].dt.strftime("%Y-%m-%d").values
    train_period = (days[0], days[len(days) * 4 // 5 - 1])
    build(url, fields, (16, 128, 128), train_period)


if __name__ == "__main__":
    with one_line_errors():
        auto_cli(
            fetch,
            as_positional=False,
            description=__doc__,
            formatter_class=HelpFormatter,
        )
