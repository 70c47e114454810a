"""Fetching through an API, against a local stand-in for the Copernicus Marine service.

No test talks to the real service. They run with the client of the stand-in and, where the package
copernicusmarine is installed, those that depend on it with the real client, too.
"""

import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import quote_plus

import pytest
import usecase_API_access as usecase
from dotenv import dotenv_values
from src.config import CHAPTER
from src.data import cloud_build
from src.data.cloud_errors import CloudError
from src.data.cloud_fields import open_fields_lazily
from src.data.cloud_store import open_store
from src.errors import UserError

from tests import copernicus_stand_in
from tests.copernicus_stand_in import ACCOUNT, DATASET, Service, ocean, provide

USER, PASSWORD = ACCOUNT
REQUEST = {"dataset_id": DATASET, "variables": ["analysed_sst"], "lon": [-5.0, 5.0]}
REQUEST |= {"lat": [-3.0, 3.0], "months": ["2020-01", "2020-02", "2020-03", "2020-04"]}
local = pytest.mark.parametrize("service", ["stand-in"], indirect=True)  # whichever client it is
AXES = {"time/zarr.json", "lat/zarr.json", "lon/zarr.json"}
ARGUMENTS = ["--start=2020-01", "--end=2020-04", "--lon", "-5", "5", "--lat", "-3", "3"]
ARGUMENTS += ["--out=sst.zarr", "--chunk", "4", "4", "4", "--attempts=3", "--wait=0"]


@pytest.fixture(params=["stand-in", "toolbox"])
def service(request, tmp_path, monkeypatch) -> Iterator[Service]:
    """The stand-in, ready for one of the clients; the working folder is empty."""
    if request.param == "toolbox":
        pytest.importorskip("copernicusmarine", reason="uv sync --group copernicus")
    service = Service(tmp_path / "service", request.param)
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    for name, value in (service.environment() | {"HOME": str(tmp_path / "home")}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "copernicusmarine", provide(service.client))
    yield service
    service.released.set()
    service.shutdown()
    service.server_close()


def run(*arguments: str) -> int:
    """Run main() in this process; later arguments win."""
    return usecase.main([*ARGUMENTS, *arguments])


def content(folder: str | Path) -> dict[str, bytes]:
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def assert_stored() -> None:
    """The store has the bytes of one that is written without a service, in a single go."""
    fields = ocean().sel(longitude=slice(-5, 5), latitude=slice(-3, 3)).astype("float32")
    fields["analysed_sst"].attrs = {"units": "kelvin"}
    fields = fields.rename(longitude="lon", latitude="lat").assign_attrs(REQUEST)
    cloud_build.build_store("expected.zarr", fields, (0, 4), (4, 4, 4))
    stored, wanted = content("sst.zarr"), content("expected.zarr")
    assert stored.keys() == wanted.keys()
    # The toolbox describes the axes with attributes of its own.
    assert {name for name in wanted if stored[name] != wanted[name]} <= AXES


def test_keeps_what_the_service_has(service, capsys):
    assert run() == 0
    printed = capsys.readouterr().out
    assert "the dataset has nothing in 2020-03" in printed
    assert "3 pages, 3 to fetch: 6 steps, 0.00144 MB" in printed
    assert service.chunks() == [1] * 6
    assert_stored()
    service.paths.clear()
    assert run() == 0
    assert not service.paths


def test_tries_again_what_may_pass(service, capsys):
    service.fail("/mapping", "503", "reset")
    service.fail("/token", "503")
    service.fail("/analysed_sst/0.0.0", "503")  # these two are up to the client itself
    service.fail("/analysed_sst/3.0.0", "cut")
    assert run("--attempts=4") == 0
    printed = capsys.readouterr().out
    assert "503 Server Error" in printed
    assert "fetched 3 pages with 3 retries" in printed
    assert service.chunks() == [2, 1, 1, 2, 1, 1]
    assert_stored()


def test_gives_up_after_the_last_attempt(service):
    service.fail("/mapping", *["503"] * 9)
    with pytest.raises(UserError, match=r"^the catalogue: HTTPError: 503 [^\n]*$"):
        run()
    assert service.paths["/mapping.json"] == 3
    assert not Path("sst.zarr").exists()


def test_leaves_a_silent_service_at_the_deadline(service, monkeypatch, capsys):
    codes: list[int] = []
    monkeypatch.setattr(usecase.os, "_exit", lambda c: (codes.append(c), service.released.set()))
    service.fail("/mapping", "stall")
    with pytest.raises(UserError):  # it goes on, as nothing ends it here
        run("--timeout=0.3", "--attempts=1")
    assert codes == [1]
    line = "error: the catalogue: not done in 0.3 s; start again to go on\n"
    assert capsys.readouterr().err == line


def test_wrong_credentials_are_not_tried_again(service, monkeypatch, capsys):
    monkeypatch.setenv(PASSWORD, "wrong")
    with pytest.raises(UserError, match=f"^the service does not accept {USER} and {PASSWORD}$"):
        run()
    assert service.paths["/token"] == 1
    assert capsys.readouterr().out == ""


def test_credentials_come_from_the_environment_or_else_from_env(service, monkeypatch):
    monkeypatch.delenv(PASSWORD)
    with pytest.raises(UserError, match=rf"^{PASSWORD} not set; \.env\.example"):
        run()
    assert not service.paths
    Path(".env").write_text(f"{USER}=somebody\n{PASSWORD}='{ACCOUNT[PASSWORD]}'\n")
    assert run() == 0


@pytest.mark.slow(copies=True)
def test_killed_between_pages_goes_on(service):
    service.fail("/analysed_sst/5.0.0", "stall")
    command = [sys.executable, copernicus_stand_in.__file__, service.client, *ARGUMENTS]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert service.stalled.wait(60)
    process.kill()
    assert "6 steps, 0.00144 MB" in process.communicate()[0]  # told before anything is fetched
    service.released.set()
    assert not Path("sst.zarr").exists()
    assert run() == 0
    assert service.chunks()[:4] == [1] * 4  # all pages but the last, which was under way
    assert_stored()


@local
def test_half_written_store_is_not_taken_for_a_whole_one(service, monkeypatch):
    with monkeypatch.context() as broken:
        broken.delattr(cloud_build, "write_statistics")
        with pytest.raises(NameError):
            run()
    with pytest.raises(CloudError, match="not finished"):
        open_fields_lazily(open_store("sst.zarr"))
    assert run() == 0
    assert service.chunks() == [1] * 6
    assert_stored()


@local
def test_damaged_pages_are_fetched_again(service, capsys):
    run()
    first, _, last = sorted(Path("output").rglob("*.nc"))
    first.write_bytes(first.read_bytes()[:-20])
    flipped = bytearray(last.read_bytes())
    flipped[-20] ^= 1
    last.write_bytes(flipped)
    shutil.rmtree("sst.zarr")
    assert run() == 0
    assert service.chunks() == [2, 2, 1, 1, 2, 2]
    assert f"{first}: damaged or out of date; 2020-01 is fetched" in capsys.readouterr().out
    assert_stored()


def test_page_of_a_month_that_has_grown_is_out_of_date(tmp_path):
    file = usecase.keep_page(tmp_path, "2020-01", ocean().isel(time=slice(0, 1)))
    assert usecase.find_page(tmp_path, "2020-01", ocean().time[:1]) == file
    assert usecase.find_page(tmp_path, "2020-01", ocean().time[:2]) is None


@local
def test_other_stores_and_files_are_left_alone(service):
    run()
    before = content("sst.zarr")
    service.paths.clear()
    with pytest.raises(UserError, match="there is another store here"):
        run("--end=2020-02")
    with pytest.raises(UserError, match="there is something else here"):
        run("--out=output")  # the cache is in it
    assert not service.paths
    assert (before, 3) == (content("sst.zarr"), len(content("output")))


def test_impossible_requests_are_one_line(service, monkeypatch):
    with pytest.raises(UserError, match=r"^--end 2019-12 is before --start 2020-01$"):
        run("--end=2019-12")
    with pytest.raises(UserError, match=r"^--start: the dataset has nothing from 2020-03"):
        run("--start=2020-03", "--end=2020-03")
    with pytest.raises(UserError, match=r"^the catalogue: (KeyError|DatasetNotFound): [^\n]*$"):
        run("--dataset-id=atlantis")
    monkeypatch.setitem(sys.modules, "copernicusmarine", None)
    with pytest.raises(UserError, match="no package copernicusmarine: uv sync --group copernicus"):
        run()


def test_chunk_that_the_service_withholds_is_told(service, capsys):
    service.fail("/analysed_sst/3.0.0", "403")
    assert run() == 0
    warned = "warning: 2020-02-16 has no values" in capsys.readouterr().out
    assert warned == (service.client == "toolbox")  # the stand-in's client raises: asked again


def test_no_secret_is_left_anywhere(service, capfd):
    service.fail("/mapping", "503")
    run()
    printed = "".join(capfd.readouterr())
    assert "503 Server Error" in printed
    everything = content(Path.home()) | {"printed": printed.encode()}
    for secret in (*ACCOUNT.values(), *map(quote_plus, ACCOUNT.values())):
        assert not [name for name, text in everything.items() if secret.encode() in text]


def test_errors_of_the_library_are_scrubbed(service, monkeypatch, capsys):
    user, password = ACCOUNT.values()
    leak = OSError(f"no route to http://host/?x={quote_plus(user)}\nuser {user!r} {password}")
    monkeypatch.setattr(sys.modules["copernicusmarine"], "open_dataset", Mock(side_effect=leak))
    with pytest.raises(UserError) as caught:
        run("--attempts=2")
    line = "the catalogue: OSError: no route to http://host/?x=*** user '***' ***"
    assert str(caught.value) == line
    assert caught.value.__suppress_context__
    assert capsys.readouterr().out == f"{line}; attempt 2 in 0.0 s\n"


def test_stand_in_takes_parameters_that_the_toolbox_has():
    toolbox = pytest.importorskip("copernicusmarine", reason="uv sync --group copernicus")
    ours = inspect.signature(copernicus_stand_in.open_dataset).parameters
    assert ours.keys() <= inspect.signature(toolbox.open_dataset).parameters.keys()


def test_env_example_names_variables_without_values():
    assert dotenv_values(CHAPTER / ".env.example") == {}
    assert set(ACCOUNT) <= set(re.findall(r"# (\w+)=", (CHAPTER / ".env.example").read_text()))
    ignored = subprocess.run(["git", "check-ignore", "-q", ".env"], cwd=CHAPTER)
    assert ignored.returncode in (0, 128)  # 128: not a repository
