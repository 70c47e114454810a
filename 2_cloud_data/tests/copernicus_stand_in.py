"""A local stand-in for the Copernicus Marine service. It is not the service: its data is invented.

``Service`` answers on 127.0.0.1 what the toolbox asks of the real one, as read in the source of
copernicusmarine 2.5.0: the login, the catalogue (STAC) and the objects of a Zarr store. It can be
told to be busy, to hang up, to cut answers short or to stall. Two clients talk to it:

  toolbox   the real package copernicusmarine; only the addresses that it asks are changed
  stand-in  ``open_dataset`` below, which takes the same steps, where the package is not installed

As a script it runs usecase_API_access.py with the client that its first argument names.
"""

import json
import os
import runpy
import socket
import struct
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from urllib.parse import parse_qs, urlsplit

import numpy as np
import requests
import xarray as xr

DATASET = "METOFFICE-GLO-SST-L4-REP-OBS-SST"
PRODUCT = "SST_GLO_SST_L4_REP_OBSERVATIONS_010_011"
STORE = f"mdl-arco-time-001/arco/{PRODUCT}/{DATASET}_202003/timeChunked.zarr"
CONFIG = "COPERNICUSMARINE_CONFIG_URL"  # the toolbox reads this variable, and so do we
ACCOUNT = {
    "COPERNICUSMARINE_SERVICE_USERNAME": "plant+user@example.org",
    "COPERNICUSMARINE_SERVICE_PASSWORD": "pl&nted/pass word%21",
}
PORTLESS = "http://copernicus.test"  # the toolbox drops the port of the store's address


def ocean() -> xr.Dataset:
    """Two days of January, February and April 2020: 6 x 16 x 24 values in kelvin, with land."""
    days = [f"2020-{month:02}-{day:02}" for month in (1, 2, 4) for day in (1, 16)]
    sst = 273.15 + np.random.default_rng(0).integers(0, 3000, (6, 16, 24)) * 0.01
    sst[:, :10, :10] = np.nan
    coordinates = {
        "time": np.array(days, "datetime64[ns]"),
        "latitude": np.arange(16, dtype="float32") - 7.5,
        "longitude": np.arange(24, dtype="float32") - 11.5,
    }
    attributes = {"units": "kelvin", "valid_min": -300, "valid_max": 4500}
    return xr.Dataset({"analysed_sst": (tuple(coordinates), sst, attributes)}, coordinates)


def write_ocean(folder: Path) -> None:
    """The store as the service keeps it: Zarr version 2, packed in integers, a chunk a day."""
    encoding: dict = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 273.15}
    encoding = {"analysed_sst": encoding | {"_FillValue": -9999, "chunks": (1, 16, 24)}}
    ocean().to_zarr(folder / STORE, zarr_format=2, consolidated=True, encoding=encoding)


def catalogue(address: str) -> dict[str, dict]:
    """The documents that lead from a dataset's name to its store, by their paths."""
    grid, axes = ocean(), {"time": "t", "latitude": "y", "longitude": "x"}
    grid["time"] = grid.time.astype("datetime64[ms]").astype(int)
    views = {}
    for name in axes:
        length = {"analysed_sst": 1 if name == "time" else grid[name].size}
        values = {"type": "explicit", "values": grid[name].values.tolist()}
        views[name] = {"chunkLen": length, "coords": values}
    sst = {"id": "analysed_sst", "dimensions": list(axes), "standardName": "sst"}
    store = {"href": f"{address}/{STORE}", "type": "application/vnd+zarr", "viewDims": views}
    properties = {
        "datetime": "2020-01-01T00:00:00Z",
        "cube:dimensions": {name: {"axis": axis} for name, axis in axes.items()},
        "cube:variables": {"analysed_sst": sst},
    }
    item = {"type": "Feature", "id": f"{DATASET}_202003", "stac_version": "1.0.0", "links": []}
    item |= {"geometry": None, "properties": properties, "assets": {"timeChunked": store}}
    link = {"rel": "item", "href": f"{DATASET}_202003/dataset.stac.json"}
    extent = {"spatial": {"bbox": [[]]}, "temporal": {"interval": [[None, None]]}}
    product = {"type": "Collection", "id": PRODUCT, "stac_version": "1.0.0", "links": [link]}
    product |= {"description": "invented", "license": "none", "extent": extent}
    services = ("mds", "mds/serverlessArco", "mds/serverlessArco/meta")
    place = {"stac": "", "stacRoot": f"{address}/metadata", "idMapping": f"{address}/mapping.json"}
    return {
        "config": {"clientVersions": dict.fromkeys(services, ">=2.0.0"), "catalogues": [place]},
        "mapping.json": {DATASET: PRODUCT},
        f"metadata/{PRODUCT}/product.stac.json": product,
        f"metadata/{PRODUCT}/{DATASET}_202003/dataset.stac.json": item,
        "userinfo": {"preferred_username": ACCOUNT["COPERNICUSMARINE_SERVICE_USERNAME"]},
    }


class Service(ThreadingHTTPServer):
    """The server; ``paths`` counts the requests, ``fail`` plans what goes wrong next."""

    daemon_threads = True

    def __init__(self, folder: Path, client: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.client = folder, client
        self.own_address = f"http://127.0.0.1:{self.server_port}"
        self.address = PORTLESS if client == "toolbox" else self.own_address
        write_ocean(folder)
        for path, document in catalogue(self.address).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(json.dumps(document))
        self.paths: Counter[str] = Counter()
        self.faults: list[tuple[str, str]] = []
        self.stalled, self.released = threading.Event(), threading.Event()
        threading.Thread(target=self.serve_forever, args=[0.02], daemon=True).start()

    def fail(self, part: str, *kinds: str) -> None:
        """The next requests whose path contains ``part`` fail, in these ways: see ``spoil``."""
        self.faults += [(part, kind) for kind in kinds]

    def chunks(self) -> list[int]:
        """How often each of the six days of data was asked for."""
        return [self.paths[f"/{STORE}/analysed_sst/{day}.0.0"] for day in range(6)]

    def environment(self) -> dict[str, str]:
        """The variables with which the client finds this server, and its account."""
        # A name without a port is found with the help of a proxy, which is this server, too.
        proxy = {"http_proxy": self.own_address} if self.client == "toolbox" else {}
        return ACCOUNT | proxy | {CONFIG: f"{self.address}/config"}


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Service

    def do_GET(self) -> None:
        file = self.server.folder / urlsplit(self.path).path[1:]
        self.answer(*((200, file.read_bytes()) if file.is_file() else (404, b"")))

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        """The login: a token for the right name and password."""
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        if [form["username"][0], form["password"][0]] == list(ACCOUNT.values()):
            self.answer(200, b'{"access_token": "token"}')
        else:
            self.answer(400, b'{"error": "invalid_grant"}')

    def answer(self, status: int, body: bytes) -> None:
        if self.command == "HEAD":
            return self.send(status, b"", len(body))
        path = urlsplit(self.path).path
        self.server.paths[path] += 1
        for fault in self.server.faults:
            if fault[0] in path:
                self.server.faults.remove(fault)
                return self.spoil(fault[1], body)
        self.send(status, body, len(body))

    def send(self, status: int, body: bytes, announced: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(announced))
        self.end_headers()
        self.wfile.write(body)

    def spoil(self, kind: str, body: bytes) -> None:
        """Fail: "stall" until the test releases it, "reset", "cut" the body, or a status."""
        if kind == "cut":
            self.send(200, body[: len(body) // 2], len(body))
        elif kind == "stall":
            self.server.stalled.set()
            self.server.released.wait()
        elif kind == "reset":  # closing without lingering sends RST
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            self.send(int(kind), b"", 0)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Keep quiet: what the programs print is what the tests look at."""


# The errors of the toolbox that the script knows by name.
InvalidUsernameOrPassword = type("InvalidUsernameOrPassword", (Exception,), {})
CouldNotConnectToAuthenticationSystem = type("CouldNotConnect", (Exception,), {})


def open_dataset(
    dataset_id: str,
    username: str,
    password: str,
    variables: list[str],
    minimum_longitude: float,
    maximum_longitude: float,
    minimum_latitude: float,
    maximum_latitude: float,
    start_datetime: str,
    end_datetime: str,
    service: str,
) -> xr.Dataset:
    """The steps of copernicusmarine.open_dataset: log in, ask the catalogue, open the store."""
    config, address = get_json(os.environ[CONFIG]), os.environ[CONFIG].removesuffix("/config")
    form = {"username": username, "password": password}
    answer = requests.post(f"{address}/token", form, timeout=60)
    if answer.status_code != 200:
        wrong = answer.status_code == 400 and "invalid_grant" in answer.text
        raise InvalidUsernameOrPassword if wrong else CouldNotConnectToAuthenticationSystem
    place = config["catalogues"][0]
    root = place["stacRoot"] + "/" + get_json(place["idMapping"])[dataset_id]
    item = get_json(f"{root}/{get_json(f'{root}/product.stac.json')['links'][0]['href']}")
    url = item["assets"]["timeChunked"]["href"].replace(address, "s3:/")
    options = {"anon": True, "endpoint_url": address}
    data = xr.open_zarr(url, storage_options=options, zarr_format=2)[variables].sel(
        longitude=slice(minimum_longitude, maximum_longitude),
        latitude=slice(minimum_latitude, maximum_latitude),
    )
    inside = data.sel(time=slice(start_datetime, end_datetime))
    return inside if inside.time.size else data.isel(time=[0])  # another month, as the toolbox


def get_json(address: str) -> dict:
    (answer := requests.get(address, timeout=60)).raise_for_status()
    return answer.json()


def provide(client: str) -> ModuleType:
    """What ``import copernicusmarine`` is to give."""
    if client == "stand-in":
        return sys.modules[__name__]
    import copernicusmarine
    from copernicusmarine.core_functions import credentials_utils, marine_datastore_config

    # The addresses of the login are constants; that of the configuration is read at the import.
    for module, constant, path in (
        (credentials_utils, "COPERNICUS_MARINE_AUTH_SYSTEM_TOKEN_ENDPOINT", "token"),
        (credentials_utils, "COPERNICUS_MARINE_AUTH_SYSTEM_USERINFO_ENDPOINT", "userinfo"),
        (marine_datastore_config, "MARINE_DATASTORE_CONFIG_URL_DIRECT", "config"),
        (marine_datastore_config, "MARINE_DATASTORE_CONFIG_URL_CDN", "config"),
    ):
        assert hasattr(module, constant)  # else the real service would be asked
        setattr(module, constant, f"{PORTLESS}/{path}")
    return copernicusmarine


if __name__ == "__main__":
    chapter = Path(__file__).resolve().parents[1]
    sys.path[0] = str(chapter)
    sys.modules["copernicusmarine"] = provide(sys.argv.pop(1))
    runpy.run_path(str(chapter / "usecase_API_access.py"), run_name="__main__")
