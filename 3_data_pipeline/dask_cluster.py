"""Where should dask's threads be when several processes train on one machine? Four ways, measured.

  uv run python dask_cluster.py
  uv run python dask_cluster.py --ranks 4 --threads 1 --workers 2
  uv run python dask_cluster.py --keep true                  look at the dashboard; Ctrl-C ends it
  uv run --group dashboard python dask_cluster.py --keep true     the same with dask's pictures

A rank stands for a training process with a GPU. It reads its part of each batch without dask, with
dask's threads in the rank itself, with a LocalCluster of its own, or with one LocalCluster that all
ranks share, because DASK_SCHEDULER_ADDRESS names it. The ways take turns, and each time all of
their processes are new. A first round warms up, a second one is measured. What dask says about
itself is in output/dask_cluster.log.
"""

import contextlib
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmark_file import Configuration, read_configurations
from dask_rank import ADDRESS, LOG, Answer, Child
from src.data.s3_server import connect
from src.errors import UserError, one_line_errors
from tqdm import tqdm
from utils import CHAPTER, machine, run_command, slow_network, spread

NONE, THREADS, OWN, SHARED = "no dask", "threads in each rank", "a cluster per rank", "one cluster"
DASK = {NONE: "none", THREADS: "threads", OWN: "cluster", SHARED: "cluster"}
COLUMNS = {"samples_per_second": "speed", "cpu_ms": "CPU time", "memory_mb": "memory"}
# dask's profiler stops Python 3.11 for ever once in a while; chapter 2's README has the reason.
PROFILER = {"DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": str(sys.version_info >= (3, 12))}
Work = Callable[[], list[Answer]]
Start = Callable[[str], contextlib.AbstractContextManager[Work]]


def all_work(children: list[Child], timeout: float) -> list[Answer]:
    """Let them work side by side."""
    began = time.monotonic()
    for child in children:
        with contextlib.suppress(BrokenPipeError):  # it has ended, and may have said why
            child.line.send("work")
    return [child.answer(began, timeout) for child in children]


@contextlib.contextmanager
def started(
    way: str,
    configuration: Configuration,
    ranks: int,
    threads: int,
    workers: int,
    timeout: float,
    variables: dict[str, str],
) -> Iterator[Work]:
    """Start the processes of a way; what it yields lets them all work once."""
    arguments = configuration["dataset_args"] | {"dask": DASK[way], "dask_threads": threads}
    configuration = configuration | {"dataset_args": arguments}
    with contextlib.ExitStack() as stack:  # what starts first, the cluster, ends last
        folder = tempfile.TemporaryDirectory(prefix="dask-", ignore_cleanup_errors=True)
        variables = variables | PROFILER
        variables["DASK_TEMPORARY_DIRECTORY"] = stack.enter_context(folder)
        cluster, readers = [], []
        if way == SHARED:
            task: Answer = {"workers": workers, "threads": threads}
            cluster = [stack.enter_context(Child(variables, task))]
            variables[ADDRESS] = all_work(cluster, timeout)[0]["address"]
        for rank in range(ranks):
            task = {"configuration": configuration, "rank": rank, "ranks": ranks}
            readers.append(stack.enter_context(Child(variables, task)))
        yield lambda: all_work(readers, timeout) + all_work(cluster, timeout)


def result_of(before: list[Answer], after: list[Answer]) -> Answer:
    """All processes together, from the first rank's start to the last one's end."""
    own = [answer for answer in after if "samples" in answer]
    samples = sum(answer["samples"] for answer in own)
    seconds = max(answer["end"] for answer in own) - min(answer["start"] for answer in own)
    cpu = sum(answer["cpu"] for answer in after) - sum(answer["cpu"] for answer in before)
    return {
        "samples_per_second": samples / seconds,
        "cpu_ms": 1e3 * cpu / samples,
        "memory_mb": sum(answer["memory_mb"] for answer in after),
        "checks": [answer["check"] for answer in own],
        "addresses": [answer["address"] for answer in own],
    }


def measure_all(start: Start, repeats: int) -> tuple[dict[str, list[Answer]], dict[str, str]]:
    """The results of the ways, which take turns, and what is wrong with the broken ones."""
    found: dict[str, list[Answer]] = {}
    broken: dict[str, str] = {}
    for way in tqdm(list(DASK) * repeats, unit="run", disable=None):
        if way in broken:
            continue
        try:
            with start(way) as work:
                result = result_of(work(), work())
            first = next(iter(found), way)
            if result["checks"] != found.get(first, [result])[0]["checks"]:
                raise UserError(f"its samples are not those of {first}")
            found.setdefault(way, []).append(result)
        except UserError as error:  # the others may work
            broken[way] = str(error)
            found.pop(way, None)
    return found, broken


def keep_open(start: Start) -> None:
    """Read through one cluster until Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt), start(SHARED) as work:
        before = work()
        if not importlib.util.find_spec("bokeh"):
            print("without bokeh the dashboard has no pictures: see /info/main/workers.html there")
        print("Ctrl-C ends it", flush=True)
        while True:
            after = work()
            print(f"{result_of(before, after)['samples_per_second']:.0f} samples/s", flush=True)
            before = after


def report(found: dict[str, list[Answer]], broken: dict[str, str]) -> None:
    """The table, and what it says: ranges that overlap are no difference."""
    print(f"{'':<22}{'samples/s':>18}{'CPU ms/sample':>16}{'memory MB':>12}")
    table = {
        way: [spread([run[key] for run in runs]) for key in COLUMNS] for way, runs in found.items()
    }
    for way, (speed, cpu, memory) in table.items():
        speeds = f"{speed['median']:.0f} ({speed['min']:.0f}-{speed['max']:.0f})"
        print(f"{way:<22}{speeds:>18}{cpu['median']:>16.1f}{memory['median']:>12.0f}")
    for way, problem in broken.items():
        print(f"{way:<22}  failed: {problem}")
    ordered = sorted(table, key=lambda way: table[way][0]["median"], reverse=True)
    for best in ordered[:1]:
        equal = [way for way in ordered[1:] if table[way][0]["max"] >= table[best][0]["min"]]
        print("fastest:", ", and within the spread ".join([best, *equal]))
    for new, old in ((OWN, THREADS), (SHARED, OWN)):
        if new in table and old in table:
            factors = [
                f"{ours['median'] / theirs['median']:.2g} times the {name}"
                for ours, theirs, name in zip(table[new], table[old], COLUMNS.values(), strict=True)
            ]
            print(f"{new} instead of {old}: {', '.join(factors)}")


def main(
    file: str = "benchmark_configs/dask_workers.yaml",
    ranks: int = 2,
    threads: int = 2,
    workers: int | None = None,
    delay: str | None = None,
    batches: int | None = None,
    repeats: int = 3,
    timeout: float = 120.0,
    keep: bool = False,
) -> int:
    """Measure where dask's threads should be.

    Args:
        file: its first configuration says which data.
        ranks: processes that read at the same time.
        threads: of dask in each rank, or in each process of a cluster.
        workers: processes of the shared cluster; null takes as many as there are ranks.
        delay: before each request to the embedded server, such as 30ms.
        batches: that each rank reads in a round.
        repeats: measurements of each way.
        timeout: seconds for a round and for what comes before it; a way that takes longer failed.
        keep: measure nothing, and read through one shared cluster until Ctrl-C.
    """
    chosen = {"ranks": ranks, "threads": threads, "workers": workers, "batches": batches}
    for name, value in (chosen | {"repeats": repeats, "timeout": timeout}).items():
        if value is not None and value <= 0:
            raise UserError(f"{name}: {value}; allowed: above 0")
    changes = {key: v for key, v in {"delay": delay, "batches": batches}.items() if v is not None}
    place = Path(file) if Path(file).is_absolute() else CHAPTER / file
    configuration = next(iter(read_configurations(place, changes).values()))
    connect()  # one server for all processes
    LOG.parent.mkdir(exist_ok=True)
    LOG.write_text("")
    with slow_network(configuration["delay"]) as variables:
        fixed = (configuration, ranks, threads, workers or ranks, timeout, variables)
        if keep:
            keep_open(lambda way: started(way, *fixed))
            return 0
        found, broken = measure_all(lambda way: started(way, *fixed), repeats)
    about = machine()
    print(f"{about['processor']}, {about['cores']} cores; {ranks} ranks, {ranks * threads} threads")
    report(found, broken)
    return int(bool(broken))


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(run_command(main, __doc__))
