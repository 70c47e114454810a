"""The benchmark of the peers: the same samples from all of them, the log, the tables.

What needs a peer that the repository does not install is left out, unless it runs as
  uv run --project peers --with pytest --with pytest-xdist --with pytest-timeout \
      pytest tests/test_peers.py
"""

import importlib.util
import json
from dataclasses import asdict, replace

import pytest
from peers import benchmark_peers, copies, readers, run_one, tables
from peers.catalogue import OURS, PEERS, RAW, RAW_MONTHS, STREAM, Peer
from peers.children import last_words, run_child
from peers.log import Log, machine_and_versions
from peers.steps import Benchmark, compare
from peers.task import Task, open_task
from src.data.pack import pack
from src.errors import UserError

from tests.cloud_stores import small_fields, small_store

WINDOW = (1, 4, 8)
NUM_SAMPLES = 12 * 2 * 2
DELAYS = ["0ms", "30ms"]


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Task:
    """A small store on this machine's disk, with its packed copies."""
    url = str(tmp_path_factory.mktemp("store") / "small.zarr")
    fields = small_fields(months=24, height=8, width=16)
    small_store(url, fields, train_months=(0, 12), chunk=WINDOW)
    pack(url, WINDOW)
    pack(url, (1, 8, 16), name="months")
    return open_task(url, 24, 8, 16, WINDOW)


@pytest.fixture(scope="module")
def expected(task) -> list[str]:
    """The hashes of FastDataset's samples."""
    hashes = run_one.check(task, **job_of(OURS))["hashes"]
    assert len(set(hashes)) == NUM_SAMPLES
    return hashes


def job_of(name: str, **settings) -> dict:
    """What run_one.py is asked to do, without workers."""
    peer = PEERS[name]
    own = {"num_workers": 0} if "num_workers" in peer.settings else {}
    for module in peer.imports:
        pytest.importorskip(module)
    return {"reader": peer.reader, "settings": peer.settings | own | settings, "limit": 60.0}


@pytest.mark.parametrize(
    "name", [RAW, RAW_MONTHS, STREAM, "zarr + s3fs", "zarr + obstore", "xarray + dask", "xbatcher"]
)
def test_same_samples(task, expected, name):
    """All of them, each once, normalised, to the bit."""
    assert run_one.check(task, **job_of(name))["hashes"] == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the peers' own
@pytest.mark.parametrize("name", ["litdata", "mosaicml-streaming"])
def test_same_samples_from_own_copy(task, expected, name):
    job = job_of(name)
    peer = PEERS[name]
    result = copies.COPIES[peer.copy](task, peer.copy_settings)
    assert result["seconds"] >= result["write_seconds"]
    assert 0 < result["megabytes"] < NUM_SAMPLES * 2 * 4 * 8 * 4 / 1e6  # compressed
    assert copies.is_there(task, peer.copy)
    assert run_one.check(task, **job)["hashes"] == expected


def test_samples_of_the_task_are_those_of_the_chapter(task):
    assert len(task.starts) == NUM_SAMPLES
    assert readers.order(task) != list(range(NUM_SAMPLES))
    assert Task(**json.loads(json.dumps(asdict(task)))).starts == task.starts


def test_epoch_is_cut_off(task):
    job = job_of(OURS)
    whole = run_one.epoch(task, **job)
    assert (whole["samples"], whole["cut_off"]) == (NUM_SAMPLES, False)
    assert 0 < whole["seconds_to_first_batch"] < whole["seconds"]
    assert whole["rate"] > whole["epoch_rate"]
    few = run_one.epoch(replace(task, batch_size=8), **job | {"limit": 0.0})
    assert (few["samples"], few["cut_off"]) == (16, True)  # there is no rate after a single batch


def test_epoch_that_ends_early_is_an_error(task, monkeypatch):
    monkeypatch.setitem(run_one.READERS, "short", lambda task: iter([[0] * 5]))
    with pytest.raises(RuntimeError, match=f"the epoch had 5 samples, not {NUM_SAMPLES}"):
        run_one.epoch(task, "short", {}, 1.0)


@pytest.mark.parametrize(
    ("hashes", "wrong"),
    [(["a", "b"], 0), (["a"], 0), (["a", "a"], 1), (["a", "c"], 1)],
)
def test_other_samples_are_found(hashes, wrong):
    """Also the same one twice; fewer are right, if the check was cut off."""
    found = compare(hashes, ["a", "b"])
    assert (found["wrong"], found["checked"], found["all"]) == (wrong, len(hashes), 2)


def made_up(job: dict, delay: str, timeout: float) -> dict:
    """The result of a job, without doing it."""
    if job["job"] == "copy":
        return {"seconds": 12.0, "megabytes": 34.0, "objects": 5}
    if job["job"] == "check":
        return {"hashes": ["a", "b"] if job["reader"] != "xbatcher" else ["a", "c"]}
    if job["reader"] == "xarray_dask":
        return {"error": "OSError: it is broken"}
    speed = {"fast_dataset": 100.0, "raw_gets": 200.0, "litdata": 400.0}.get(job["reader"], 50.0)
    speed /= 1 + (delay != "0ms")
    return {
        "epoch_rate": speed,
        "rate": 2 * speed,
        "seconds_to_first_batch": 0.5,
        "peak_memory_mb": 600.0,
        "cut_off": job["reader"] == "xbatcher",
    }


@pytest.fixture
def benchmark(tmp_path) -> Benchmark:
    about = machine_and_versions()
    return Benchmark({"url": "nowhere"}, Log(tmp_path / "log.jsonl"), about, made_up)


def run_all(benchmark: Benchmark, repeats: int = 1) -> str:
    benchmark.make_copies(PEERS, lambda copy: True)
    benchmark.check(PEERS, 1.0)
    benchmark.measure(PEERS, DELAYS, repeats, 1.0)
    return tables.report(benchmark, PEERS, DELAYS, 1.0)


def test_tables(benchmark, capsys):
    """Rates, ratios, what each needs first; a peer that is broken, and one that is wrong."""
    found = run_all(benchmark, repeats=3)
    lines = [" ".join(line.split()) for line in found.splitlines()]
    assert "litdata 400 (400-400) 200 (200-200)" in lines
    assert "litdata 4.00 / 8.00 / 2.00 / 2.00 4.00 / 8.00 / 2.00 / 2.00" in lines
    assert "xbatcher 50.0* (50.0-50.0) 25.0* (25.0-25.0)" in lines
    assert "xarray + dask failed failed" in lines
    assert "xarray + dask, 30ms: OSError: it is broken" in lines
    assert "litdata own shards, zstd 12.0 34.0 5 2 of 2" in lines
    assert "xbatcher the store as it is 0 failed" in lines
    assert "xbatcher: check: 1 of 2 samples are not FastDataset's" in capsys.readouterr().err
    assert benchmark.has_errors(PEERS, DELAYS, 1.0)
    good = {name: peer for name, peer in PEERS.items() if not name.startswith("x")}
    assert not benchmark.has_errors(good, DELAYS, 1.0)


def test_runs_are_interleaved(benchmark):
    run_all(benchmark, repeats=2)
    runs = [(run["repeat"], run["delay"], run["peer"]) for run in benchmark.log.find("run")]
    assert runs == [(r, delay, name) for r in range(2) for delay in DELAYS for name in PEERS]


def test_interrupted_log_is_continued(benchmark):
    """A kill may leave half a line: that run, and those with an error, are done again."""
    run_all(benchmark)
    path = benchmark.log.path
    lines = path.read_text().splitlines()
    lost = json.loads(lines[-2])["peer"]
    assert lost == "xbatcher"
    path.write_text("\n".join([*lines[:-2], lines[-2][:40]]) + "\n")
    again = []

    def child(job: dict, delay: str, timeout: float) -> dict:
        again.append((job["job"], job["reader"], delay))
        return made_up(job, delay, timeout)

    run_all(Benchmark(benchmark.task, Log(path), benchmark.about, child))
    checks = [("check", "fast_dataset", "0ms"), ("check", "xbatcher", "0ms")]
    runs = [("xarray_dask", "0ms"), ("xbatcher", "30ms"), ("xarray_dask", "30ms")]
    assert again == [*checks, *(("epoch", *run) for run in runs)]


def test_another_machine_is_another_benchmark(benchmark):
    run_all(benchmark)
    other = Benchmark(benchmark.task, benchmark.log, benchmark.about | {"cores": -1}, made_up)
    assert not other.runs(PEERS, DELAYS, 1.0)


@pytest.mark.slow
def test_job_in_a_process_of_its_own(task):
    job = {"job": "epoch", "task": asdict(task), "imports": ["tensorstore"]} | job_of(OURS)
    result = run_child(job, "0ms", 60.0)
    assert result["samples"] == NUM_SAMPLES
    assert result["peak_memory_mb"] > 100
    lost = replace(task, url=f"{task.url}.lost")
    error = run_child(job | {"task": asdict(lost)}, "0ms", 60.0)["error"]
    assert "there is no Zarr store here" in error
    assert run_child(job, "0ms", 0.1) == {"error": "not done in 0.1 s"}


def test_last_words():
    said = "Traceback:\n  x\nValueError: this is it\nDebug source:\n  {}\n"
    assert last_words(said) == "ValueError: this is it"
    assert last_words("killed\n") == "killed"


def test_missing_module_is_one_line(capsys):
    there = benchmark_peers.present({"a": Peer("x", {}, "", imports=("no_such_module.x",))})
    assert not there
    assert capsys.readouterr().err == "a: left out, there is no module no_such_module.x\n"
    assert benchmark_peers.is_importable("src.data.fast_dataset")
    assert importlib.util.find_spec("peers.catalogue")


def test_settings_of_a_peer():
    chosen = benchmark_peers.chosen_peers(["litdata", RAW], {"litdata": {"num_workers": 7}})
    assert list(chosen) == ["litdata", RAW]
    assert chosen["litdata"].settings == PEERS["litdata"].settings | {"num_workers": 7}
    assert chosen[RAW] == PEERS[RAW]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"peers": ["tfdata"]}, "peers: 'tfdata' is none; allowed: raw GETs, raw GETs of"),
        ({"settings": {"lit": {}}}, "peers: 'lit' is none"),
        ({"delays": ["30"]}, "delays: '30' is not a time, such as 30ms"),
        ({"repeats": 0}, "repeats, limit, months: 0, 15, 240; allowed: above 0"),
        ({"table": True, "months": 3}, "has nothing about 3 months"),
    ],
)
def test_bad_input(arguments, message, tmp_path):
    with pytest.raises(UserError, match=message):
        benchmark_peers.main(**{"log": str(tmp_path / "log")} | arguments)
