"""Dask in several processes: the same samples, one cluster if it is shared, and nothing is left."""

import contextlib
import re
import signal
import subprocess
import sys
import urllib.request

import dask_cluster
import dask_rank
import psutil
import pytest
import yaml
from dask_cluster import NONE, OWN, SHARED, THREADS
from src.config import CHAPTER
from src.errors import UserError

from tests.cloud_stores import SMALL
from tests.cloud_stores import url as url  # a fixture

PATIENCE = 240.0  # seconds: each process imports half of Python's packages, on busy cores


@pytest.fixture
def file(url, tmp_path):
    """A configuration that reads a small store on this machine's disk."""
    arguments = {key: list(value) for key, value in SMALL.items()} | {"url": url}
    defaults = {
        "dataset": "src.data.usecase_cloud_dataset.CloudDataset",
        "dataset_args": arguments,
        **{"batch_size": 2, "train_step_time": 0, "warmup": 0, "batches": 3},
    }
    place = tmp_path / "small.yaml"
    place.write_text(yaml.safe_dump({"defaults": defaults, "configurations": {"one": None}}))
    return place


@pytest.fixture
def configuration(file, monkeypatch):
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tcp://127.0.0.1:1")  # somebody else's
    return next(iter(dask_cluster.read_configurations(file, {}).values()))


def family() -> set[psutil.Process]:
    """What this process started and what runs, with what those started."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it may have ended
            if process.status() != psutil.STATUS_ZOMBIE:
                found.add(process)
    return found


def answers_at(link: str) -> str:
    with urllib.request.urlopen(link, timeout=10) as answer:
        assert answer.status == 200
        return answer.read().decode()


def helpers() -> set[psutil.Process]:
    """What multiprocessing starts once for this process, and keeps."""
    found = set()
    for process in family():
        with contextlib.suppress(psutil.Error):  # it may have ended
            if "resource_tracker" in " ".join(process.cmdline()):
                found.add(process)
    return found


def checks(configuration, **arguments) -> list[int]:
    """What two ranks read, without processes of their own."""
    own = configuration | {"dataset_args": configuration["dataset_args"] | arguments}
    return [dask_rank.make_rank(own, rank, 2)()["check"] for rank in range(2)]


def test_threads_deliver_the_same_samples(configuration):
    """Each rank its own half."""
    expected = checks(configuration)
    assert expected[0] != expected[1]
    assert checks(configuration, dask="threads", dask_threads=2) == expected


@pytest.mark.slow
@pytest.mark.timeout(4 * PATIENCE)
def test_clusters_deliver_the_same_samples(configuration, capfd):
    """Meanwhile the dashboards answer. The shared cluster is one, and not the environment's."""
    before = family()  # the servers of other tests
    for way in (OWN, SHARED):
        with dask_cluster.started(way, configuration, 2, 1, 1, PATIENCE, {}) as work:
            result = dask_cluster.result_of(work(), work())
            printed = capfd.readouterr().out
            links = re.findall(r"dashboard (http://127\.0\.0\.1:\d+)/status", printed)
            assert [answers_at(f"{link}/health") for link in links] == ["ok"] * len(links)
            assert all("<" in answers_at(f"{link}/status") for link in links)
        assert result["checks"] == checks(configuration)
        assert len(links) == len(set(result["addresses"])) == (2 if way == OWN else 1)
        assert set(re.findall(r"tcp://[\d.:]+", printed)) == set(result["addresses"])
        assert result["memory_mb"] > 100
        assert result["cpu_ms"] > 0
    assert not family() - helpers() - before


def test_a_rank_that_dies_and_one_that_takes_too_long(configuration):
    before = family()
    with dask_cluster.started(NONE, configuration, 1, 1, 1, PATIENCE, {}) as work:
        for process in family() - helpers() - before:
            process.kill()
        with pytest.raises(UserError, match="a process ended, exit code -9"):
            work()
    with (
        dask_cluster.started(NONE, configuration, 1, 1, 1, 0.01, {}) as work,
        pytest.raises(UserError, match=r"not done in 0\.01 s"),
    ):
        work()


@pytest.mark.slow
def test_interrupt_leaves_no_process(file):
    """Ctrl-C while the shared cluster works."""
    command = [sys.executable, "-c", "import dask_cluster as d; d.connect = lambda: None\n"
               "import sys; from jsonargparse import auto_cli\n"
               "if __name__ == '__main__': sys.exit(auto_cli(d.main))"]  # fmt: skip
    command += [f"--file={file}", "--keep=true", "--ranks=1"]
    with subprocess.Popen(command, cwd=CHAPTER, stdout=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline()]
        while "samples/s" not in lines[-1]:
            assert lines[-1], lines
            lines.append(process.stdout.readline())
        assert "Ctrl-C ends it\n" in lines
        (link,) = re.findall(r"dashboard (http://127\.0\.0\.1:\d+)/status", "".join(lines))
        assert answers_at(f"{link}/health") == "ok"
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) > 3  # the cluster, its worker, the rank
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(60) == 0
    _, left = psutil.wait_procs(children, timeout=30)
    assert not left
    with pytest.raises(OSError, match="refused"):
        answers_at(link)


def test_a_broken_way_does_not_stop_the_others(monkeypatch, capsys):
    """Nor does one whose samples are others."""
    answer = {"start": 0.0, "end": 1.0, "samples": 10, "cpu": 1.0, "memory_mb": 5.0, "address": ""}

    @contextlib.contextmanager
    def start(way):
        if way == OWN:
            raise UserError("no port is free")
        yield lambda: [answer | {"check": int(way == SHARED)}]

    monkeypatch.setattr(dask_cluster, "tqdm", lambda ways, **_: ways)
    found, broken = dask_cluster.measure_all(start, 2)
    assert {way: len(runs) for way, runs in found.items()} == {NONE: 2, THREADS: 2}
    assert broken == {OWN: "no port is free", SHARED: f"its samples are not those of {NONE}"}
    dask_cluster.report(found, broken)
    printed = capsys.readouterr().out
    assert re.search(rf"^{NONE} +10 \(10-10\) +0\.0 +5$", printed, re.MULTILINE)
    assert re.search(rf"^{OWN} +failed: no port is free$", printed, re.MULTILINE)
    assert f"fastest: {NONE}, and within the spread {THREADS}" in printed


def test_verdict(capsys):
    """Processor time is that of the measured round; ranges that do not meet are a difference."""
    one = {"start": 1.0, "end": 2.0, "samples": 10, "cpu": 3.0, "memory_mb": 5.0}
    one |= {"check": 1, "address": "a"}
    late = one | {"start": 1.5, "end": 3.0, "cpu": 4.0}
    cluster = {"address": "a", "start": 0.0, "end": 9.0, "cpu": 2.0, "memory_mb": 7.0}
    before = [one | {"cpu": 1.0}, late | {"cpu": 1.0}, cluster | {"cpu": 1.0}]
    result = dask_cluster.result_of(before, [one, late, cluster])
    assert [result[key] for key in dask_cluster.COLUMNS] == [10.0, 300.0, 17.0]
    slow = result | {"samples_per_second": 5.0}
    dask_cluster.report({THREADS: [result], OWN: [slow], SHARED: [slow]}, {})
    printed = capsys.readouterr().out
    assert f"fastest: {THREADS}\n" in printed
    assert f"{OWN} instead of {THREADS}: 0.5 times the speed, 1 times the CPU time" in printed
    assert f"{SHARED} instead of {OWN}: 1 times the speed" in printed


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"ranks": 0}, "ranks: 0; allowed: above 0"),
        ({"workers": -1}, "workers: -1; allowed: above 0"),
        ({"timeout": 0.0}, "timeout: 0.0; allowed: above 0"),
        ({"delay": "fast"}, "delay: 'fast' is not a number with a unit; allowed: such as 30ms, 1s"),
        ({"file": "nothing.yaml"}, "file: .*nothing.yaml is no list of configurations"),
    ],
)
def test_bad_input_is_one_line(setting, message, monkeypatch):
    monkeypatch.setattr(dask_cluster, "connect", lambda: pytest.fail("work has begun"))
    with pytest.raises(UserError, match=message) as caught:
        dask_cluster.main(**setting)
    assert "\n" not in str(caught.value)
