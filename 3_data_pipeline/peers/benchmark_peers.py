r"""The same samples from the same server, through what you might use instead of this chapter.

  uv run --project peers python peers/benchmark_peers.py --months 24 --delays [0ms,30ms] \
      --repeats 1 --limit 5                                   a short form
  uv run --project peers python peers/benchmark_peers.py      all of it
  uv run --project peers python peers/benchmark_peers.py --table true
  uv run --project peers python peers/benchmark_peers.py --peers [FastDataset,litdata] \
      --settings '{"litdata": {"num_workers": 1}}' --log peers/other.jsonl

The peers have an environment of their own, peers/pyproject.toml, which the first command installs.
Four steps: build the store, unless it is there; make the copies that some peers need, and time it;
check that every peer delivers the same samples, to the bit; then measure, each run in a process of
its own with cold caches, peer after peer, delay after delay, so that what changes on the machine
meanwhile changes all of them. Everything goes to the log, one line of JSON for each step: an
interrupted benchmark goes on with what is missing there. A peer that fails is reported, and the
others go on.
"""

import contextlib
import importlib.util
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # the chapter: src, utils, peers

from peers import copies
from peers.catalogue import PEERS, Peer
from peers.children import run_child
from peers.log import Log, machine_and_versions
from peers.steps import Benchmark
from peers.tables import report
from peers.task import Task
from src.data.s3_server import connect
from src.errors import UserError, one_line_errors
from utils import CHAPTER, run_command

URL = "s3://embedded/peers_{months}.zarr"


def chosen_peers(names: list[str] | None, settings: dict[str, dict[str, Any]]) -> dict[str, Peer]:
    """The peers of a run, with other settings where the user wants them."""
    for name in [*(names or []), *settings]:
        if name not in PEERS:
            raise UserError(f"peers: {name!r} is none; allowed: {', '.join(PEERS)}")
    chosen = {name: PEERS[name] for name in names or PEERS}
    for name, changes in settings.items():
        if name in chosen:
            peer = chosen[name]
            chosen[name] = replace(peer, settings=peer.settings | changes)
    return chosen


def present(peers: dict[str, Peer]) -> dict[str, Peer]:
    """Those whose modules are there; one line for each of the others."""
    found = {}
    for name, peer in peers.items():
        if missing := [module for module in peer.imports if not is_importable(module)]:
            print(f"{name}: left out, there is no module {', '.join(missing)}", file=sys.stderr)
        else:
            found[name] = peer
    return found


def is_importable(module: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.util.find_spec(module) is not None
    return False


def begin(log: Log, months: int, table: bool) -> Benchmark:
    """The benchmark of a store: a new one, or the one that the log has begun."""
    begun = log.find("task", months=months)
    if table:
        if not begun:
            raise UserError(f"log: {log.path} has nothing about {months} months")
        return Benchmark(begun[-1]["task"], log, begun[-1]["machine"])
    about = machine_and_versions()
    url = URL.format(months=months)
    copies.build_store(url, months)
    task = run_child({"job": "task", "url": url, "months": months}, "0ms", 120.0)
    if "error" in task:
        raise UserError(f"the store: {task['error']}")
    task = {key: task[key] for key in Task.__dataclass_fields__}
    benchmark = Benchmark(task, log, about)
    if not any(line["fingerprint"] == benchmark.mark() for line in begun[-1:]):
        line = {"kind": "task", "months": months, "fingerprint": benchmark.mark()}
        log.add(line | {"task": task, "machine": about})
    return benchmark


def main(
    peers: list[str] | None = None,
    delays: list[str] = ["0ms", "10ms", "30ms", "100ms"],  # noqa: B006
    repeats: int = 3,
    limit: float = 15.0,
    months: int = 240,
    settings: dict[str, dict[str, Any]] | None = None,
    log: str = "peers/results.jsonl",
    fresh: bool = False,
    table: bool = False,
) -> int:
    """Compare readers.

    Args:
        peers: which of them; null takes all. peers/catalogue.py lists them, and how each is tuned.
        delays: before each request to the server.
        repeats: runs of each peer with each delay.
        limit: seconds after the first batch after which a run is cut off; its rate is that of what
            it has delivered by then.
        months: how large the store is; four fifths of them are read, 32 samples a month.
        settings: other settings for a peer, such as {"litdata": {"num_workers": 1}}.
        log: where the results go.
        fresh: begin the log anew, and make the copies again, instead of going on.
        table: only print the tables of the log.
    """
    if min(repeats, limit) <= 0 or months < 2:
        raise UserError(
            f"repeats, limit, months: {repeats}, {limit:g}, {months}; "
            "allowed: above 0, above 0, from 2"
        )
    for delay in delays:
        if not re.fullmatch(r"\d+(\.\d+)?(us|ms|s)", delay):
            raise UserError(f"delays: {delay!r} is not a time, such as 30ms")
    wanted = chosen_peers(peers, settings or {})
    path = CHAPTER / log
    if fresh and not table:
        path.unlink(missing_ok=True)
    if not table:
        connect()  # one server for all runs
    benchmark = begin(Log(path), months, table)
    if not table:
        there = present(wanted)
        benchmark.make_copies(there, partial(copies.is_there, Task(**benchmark.task)))
        benchmark.check(there, limit)
        benchmark.measure(there, delays, repeats, limit)
    print(report(benchmark, wanted, delays, limit))
    return int(benchmark.has_errors(wanted, delays, limit))


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(run_command(main, __doc__))
