r"""Fetch ocean data through an API, a month at a time, and keep it as a Zarr store of your own.

  uv sync --group copernicus          # the client library, which nothing else here needs
  cp .env.example .env                # your account: https://data.marine.copernicus.eu/register
  uv run python usecase_API_access.py --start 2020-01 --end 2020-06 --lon -20 0 --lat -5 5 \
      --out output/copernicus.zarr

Some data lies open in object storage. Other data stands behind a service, which wants to know who
you are, and may be busy or down. Here it is Copernicus Marine; the pattern is always the same:

  client      the library of the service; credentials come from the environment and stay there
  subset      ask for the variables, the box and the months that you train on
  paging      one request a month: a failure costs one page, not the whole download
  retries     what may pass (a busy server, a lost connection) is tried again, ever later
  cache       a page is on disk whole or not at all, and is not fetched twice
  own store   training never waits for the service: it reads your Zarr store, wherever it is

The tests ask a local stand-in for the service, never the service: tests/copernicus_stand_in.py
"""

import argparse
import hashlib
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote, quote_plus

import numpy as np
import xarray as xr
from botocore.exceptions import BotoCoreError, ClientError
from dotenv import find_dotenv, load_dotenv
from src.data.cloud_build import build_store, state_of
from src.data.cloud_store import open_store
from src.data.netcdf import AXES, OTHER_NAMES, check_axes
from src.errors import UserError, one_line_errors
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt
from tenacity.wait import wait_random_exponential
from tqdm import tqdm

SECRETS = ("COPERNICUSMARINE_SERVICE_USERNAME", "COPERNICUSMARINE_SERVICE_PASSWORD")
REQUEST = ("dataset_id", "variables", "lon", "lat")  # what a page depends on, beside its month


def told(error: BaseException | None) -> str:
    """An error in one line without credentials: the toolbox puts the user name in its addresses."""
    text = f"{type(error).__name__}: {error}"
    values = [value for name in SECRETS if (value := os.environ.get(name))]
    written = {form for v in values for form in (v, quote(v, safe=""), quote_plus(v))}
    for form in sorted(written, key=len, reverse=True):  # one may be a part of another
        text = text.replace(form, "***")
    return " ".join(text.split())[:300]


class Client:
    """The Copernicus Marine toolbox, asked with our account and with patience."""

    def __init__(self, options: argparse.Namespace) -> None:
        if missing := [name for name in SECRETS if not os.environ.get(name)]:
            raise UserError(f"{' and '.join(missing)} not set; .env.example says how")
        try:
            import copernicusmarine  # it reads the environment now, so not before .env is loaded
        except ModuleNotFoundError:
            raise UserError("no package copernicusmarine: uv sync --group copernicus") from None
        # It logs much, addresses with the user name among it.
        logging.getLogger("copernicusmarine").setLevel(logging.ERROR)
        self.options, self.toolbox, self.retries = options, copernicusmarine, 0

    def page(self, month: str) -> xr.Dataset:
        """One month, in memory. Each attempt starts at the login: nothing stale is used again."""
        page = self.patiently(month, lambda: self.subset(month, month).load())
        for field in page.values():  # they bound the packed integers, which nobody sees here
            field.attrs = {k: v for k, v in field.attrs.items() if not k.startswith("valid_")}
        return page.map(lambda field: field.astype(np.float32), keep_attrs=True)

    def subset(self, first: str, last: str) -> xr.Dataset:
        """The lazy dataset of the months from ``first`` to ``last``, over (time, lat, lon)."""
        # The parameters of version 2.5.0, https://toolbox-docs.marine.copernicus.eu
        start = np.datetime64(first, "s")
        end = (np.datetime64(last, "M") + 1).astype("datetime64[s]") - 1
        data = self.toolbox.open_dataset(
            dataset_id=self.options.dataset_id,
            username=os.environ[SECRETS[0]],
            password=os.environ[SECRETS[1]],
            variables=self.options.variables,
            minimum_longitude=self.options.lon[0],
            maximum_longitude=self.options.lon[1],
            minimum_latitude=self.options.lat[0],
            maximum_latitude=self.options.lat[1],
            start_datetime=str(start),
            end_datetime=str(end),
            # The service keeps the data twice. In the other copy a chunk holds years of a small
            # area, so that every page would fetch the same chunks again.
            service="arco-geo-series",
        )
        # Where it has nothing, the toolbox gives the nearest time instead, of another month.
        data = data.sel(time=slice(start, end)).drop_encoding().drop_attrs(deep=False)
        return data.rename({old: new for old, new in OTHER_NAMES.items() if old in data.dims})

    def patiently(self, what: str, ask: Callable[[], xr.Dataset]) -> xr.Dataset:
        """The answer to ``ask`` after a few attempts, or one line that says why there is none."""

        def report(state: RetryCallState) -> None:
            self.retries += 1
            why = told(state.outcome.exception()) if state.outcome else ""
            again = f"attempt {state.attempt_number + 1} in {state.upcoming_sleep:.1f} s"
            tqdm.write(f"{what}: {why}; {again}")

        busy = self.toolbox.CouldNotConnectToAuthenticationSystem
        retrying = Retrying(
            # OSError is the network; requests' errors belong to it. The others: object storage.
            retry=retry_if_exception_type((OSError, BotoCoreError, ClientError, busy)),
            stop=stop_after_attempt(self.options.attempts),
            # A random part of an ever longer wait: those who failed together come back apart.
            wait=wait_random_exponential(multiplier=self.options.wait, max=60),
            before_sleep=report,
            reraise=True,
        )
        # The toolbox repeats a read up to ninety times, a minute each where a server stays silent.
        timer = threading.Timer(self.options.timeout, give_up, [what, self.options.timeout])
        timer.daemon = True
        timer.start()
        try:
            return retrying(ask)
        except self.toolbox.InvalidUsernameOrPassword:
            raise UserError(f"the service does not accept {' and '.join(SECRETS)}") from None
        except Exception as error:  # "from None": the original may have the secrets in its text
            raise UserError(f"{what}: {told(error)}") from None
        finally:
            timer.cancel()


def give_up(what: str, seconds: float) -> None:
    """End at once: threads cannot be stopped, and Python waits for them. No file is left half."""
    print(f"error: {what}: not done in {seconds:g} s; start again to go on", file=sys.stderr)
    os._exit(1)


def find_page(folder: Path, month: str, times: xr.DataArray) -> Path | None:
    """The page, if it is there, undamaged, and has the ``times`` that the service has now."""
    for file in folder.glob(f"{month}.*.nc"):
        if file.name == page_name(month, file):
            with xr.open_dataset(file, engine="netcdf4") as page:
                if page.time.equals(times):
                    return file
        print(f"{file}: damaged or out of date; {month} is fetched again")
        file.unlink()
    return None


def keep_page(folder: Path, month: str, page: xr.Dataset) -> Path:
    """A page gets its name when it is whole; what a kill leaves behind has another one."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{month}.part"
    page.to_netcdf(partial, engine="netcdf4")
    return partial.replace(folder / page_name(month, partial))


def page_name(month: str, file: Path) -> str:
    """The name of a page is the checksum of its bytes, so damage shows."""
    with file.open("rb") as content:
        return f"{month}.{hashlib.file_digest(content, 'sha256').hexdigest()[:16]}.nc"


def fetch(client: Client, folder: Path, plan: xr.Dataset, months: Sequence[str]) -> list[Path]:
    """The pages of the ``months`` that have data, from the cache or else from the service."""
    times = {month: plan.time.sel(time=slice(month, month)) for month in months}
    if absent := [month for month in months if not times[month].size]:
        print(f"the dataset has nothing in {', '.join(absent)}")
    pages = {m: find_page(folder, m, times[m]) for m in months if m not in absent}
    missing = [month for month, page in pages.items() if not page]
    steps = sum(times[month].size for month in missing)
    size = 4e-6 * steps * sum(field[0].size for field in plan.values())  # as float32, unpacked
    print(f"{len(pages)} pages, {len(missing)} to fetch: {steps} steps, {size:.3g} MB", flush=True)
    for month in tqdm(missing, unit="page", disable=None):
        page = client.page(month)
        if not page.time.equals(times[month]):
            raise UserError(f"{month}: {page.time.size} of {times[month].size} time steps came")
        # The toolbox takes a chunk that is denied (403) or lost (404) for missing values.
        hollow = page.to_dataarray().isnull().all(("lat", "lon")).any("variable")
        for date in page.time[hollow.values].dt.date.values:
            tqdm.write(f"warning: {date} has no values: is that so, or was a chunk withheld?")
        pages[month] = keep_page(folder, month, page)
    print(f"fetched {len(missing)} pages with {client.retries} retries")
    return [page for page in pages.values() if page]


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan, fetch the pages that are missing, write the store."""
    load_dotenv(find_dotenv(usecwd=True))  # what is set in the environment wins
    options = parse(arguments)
    request = {name: getattr(options, name) for name in REQUEST}
    start, end = (np.datetime64(date, "M") for date in (options.start, options.end))
    if not (months := [str(month) for month in np.arange(start, end + 1)]):
        raise UserError(f"--end {end} is before --start {start}")
    attributes = request | {"months": months}  # the store keeps them: another request is refused
    store = open_store(options.out, writable=True)
    state = state_of(store, xr.Dataset(attrs=attributes), options.overwrite)
    if state == "complete":
        print(f"{options.out} is complete")
        return 0
    client = Client(options)
    # All of it, but lazily: this asks for the grid and the times, and gives the size.
    plan = client.patiently("the catalogue", lambda: client.subset(months[0], months[-1]))
    check_axes(plan)
    if not plan.time.size:
        raise UserError(f"--start: the dataset has nothing from {start} to {end}")
    folder = options.cache / hashlib.sha256(json.dumps(request).encode()).hexdigest()[:16]
    files = fetch(client, folder, plan, months)
    with xr.open_mfdataset(files, engine="netcdf4", combine="nested", concat_dim="time") as fields:
        fields = fields.drop_encoding().chunk(dict(zip(AXES, options.chunk, strict=True)))
        # Training gets the first four fifths: statistics of all would know the validation data.
        train = (0, fields.sizes["time"] * 4 // 5)
        fields = fields.assign_attrs(attributes)
        build_store(options.out, fields, train, options.chunk, overwrite=options.overwrite)
    print(f"wrote {options.out}; data.dataset.train_months: {list(train)}")
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    add = parser.add_argument
    add("--dataset-id", default="METOFFICE-GLO-SST-L4-REP-OBS-SST", help="default: daily OSTIA")
    add("--variables", nargs="+", default=["analysed_sst"], help="over time, latitude, longitude")
    add("--start", type=np.datetime64, required=True, help="first month, such as 2020-01")
    add("--end", type=np.datetime64, required=True, help="last month, inclusive")
    add("--lon", type=float, nargs=2, required=True, metavar=("WEST", "EAST"), help="degrees")
    add("--lat", type=float, nargs=2, required=True, metavar=("SOUTH", "NORTH"), help="degrees")
    add("--out", required=True, help="the store: a path, or a URL such as s3://bucket/sst.zarr")
    add("--overwrite", action="store_true", help="replace what is there")
    add("--chunk", type=int, nargs=3, default=[16, 128, 128], help="default: %(default)s")
    add("--cache", type=Path, default=Path("output/api_cache"), help="default: %(default)s")
    add("--attempts", type=int, default=5, help="for each page; default: %(default)s")
    add("--wait", type=float, default=1.0, help="longest first wait in s; it doubles each time")
    add("--timeout", type=float, default=1800.0, help="for a page, in s; default: %(default)s")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
