"""The steps of the benchmark: copies, check, runs. What the log has is not done again."""

import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from peers.catalogue import OURS, PEERS, Peer
from peers.children import Child, run_child
from peers.log import Log, fingerprint
from tqdm import tqdm

Job = dict[str, Any]
TIMEOUT = 180.0  # seconds beyond its limit after which a run has failed
COPY_TIMEOUT = 3600.0
REFERENCE_LIMIT = 600.0  # for all samples, which the others are compared with
DATES = ("date", "memory_gb")  # all else about a machine makes another benchmark


class Benchmark:
    """The steps of a benchmark, each of which is left out if the log has it.

    Args:
        task: the samples, as run_one.py says them.
        log: where results go, and what is there already.
        about: machine and versions; another machine's results are not continued.
        child: runs a job in a process.
    """

    def __init__(self, task: Job, log: Log, about: Job, child: Child = run_child) -> None:
        self.task, self.log, self.about, self.child = task, log, about, child
        self.place = {key: value for key, value in about.items() if key not in DATES}

    def mark(self, *parts: Any) -> str:
        return fingerprint(self.task, self.place, *parts)

    def step(self, key: Job, job: Job, delay: str, timeout: float) -> Job:
        """Do a job, add it to the log. An error is a result like any other."""
        result = self.child(job | {"task": self.task}, delay, timeout)
        line = key | {"machine": self.about} | result
        self.log.add(line)
        if "error" in result:
            tqdm.write(f"{key['peer']}: {result['error']}", file=sys.stderr)
        return line

    def make_copies(self, peers: dict[str, Peer], is_there: Callable[[str], bool]) -> None:
        """The copies that the peers need, each once, unless the log and the store have them."""
        wanted = {peer.copy: peer.copy_settings for peer in peers.values() if peer.copy}
        for copy, settings in tqdm(wanted.items(), desc="copies", disable=None):
            key = {"kind": "copy", "peer": copy, "fingerprint": self.mark(copy, settings)}
            if not (self.log.done(**key) and is_there(copy)):
                job = {"job": "copy", "copy": copy, "settings": settings}
                self.step(key, job, "0ms", COPY_TIMEOUT)

    def check(self, peers: dict[str, Peer], limit: float) -> None:
        """Whether the peers deliver the samples of FastDataset, to the bit, none of them twice."""
        keys = {
            name: {"kind": "check", "peer": name, "fingerprint": self.mark(vars(peer))}
            for name, peer in peers.items()
        }
        todo = [name for name, key in keys.items() if not self.log.done(**key)]
        if not todo:
            return
        reference = self.hashes(PEERS[OURS], REFERENCE_LIMIT)
        for name in tqdm(todo, desc="check", unit="peer", disable=None):
            result = self.hashes(peers[name], limit)
            found = result.pop("hashes", [])
            line = keys[name] | result | compare(found, reference.get("hashes", []))
            if line["wrong"] and "error" not in line:
                line["error"] = f"{line['wrong']} of {len(found)} samples are not {OURS}'s"
            if "error" in line:
                tqdm.write(f"{name}: check: {line['error']}", file=sys.stderr)
            self.log.add(line)

    def hashes(self, peer: Peer, limit: float) -> Job:
        """Those of the samples that a peer delivers within the limit."""
        job: Job = {"job": "check", "reader": peer.reader, "settings": peer.settings}
        job |= {"limit": limit, "imports": peer.imports, "task": self.task}
        return self.child(job, "0ms", TIMEOUT + limit)

    def missing_runs(
        self, peers: dict[str, Peer], delays: list[str], repeats: int, limit: float
    ) -> Iterator[tuple[str, str, Job]]:
        """Name, delay and key of each run to do, in turns."""
        for repeat, delay, name in product(range(repeats), delays, peers):
            mark = self.mark(name, vars(peers[name]), delay, limit)
            key: Job = {"kind": "run", "peer": name, "delay": delay, "repeat": repeat}
            key["fingerprint"] = mark
            if not self.log.done(**key):
                yield name, delay, key

    def measure(
        self, peers: dict[str, Peer], delays: list[str], repeats: int, limit: float
    ) -> None:
        """All runs that are missing."""
        todo = list(self.missing_runs(peers, delays, repeats, limit))
        for name, delay, key in (bar := tqdm(todo, desc="runs", unit="run", disable=None)):
            bar.set_postfix_str(f"{name}, {delay}")
            peer = peers[name]
            job: Job = {"job": "epoch", "reader": peer.reader, "settings": peer.settings}
            job |= {"limit": limit, "imports": peer.imports}
            self.step(key, job, delay, TIMEOUT + limit)

    def runs(self, peers: dict[str, Peer], delays: list[str], limit: float) -> list[Job]:
        """All runs of the log that have these settings."""
        marks = {
            self.mark(name, vars(peer), delay, limit)
            for (name, peer), delay in product(peers.items(), delays)
        }
        return [line for line in self.log.find("run") if line["fingerprint"] in marks]

    def has_errors(self, peers: dict[str, Peer], delays: list[str], limit: float) -> bool:
        """Whether something is missing from the tables, or a peer reads other samples."""
        done = {
            (run["peer"], run["delay"])
            for run in self.runs(peers, delays, limit)
            if "error" not in run
        }
        wrong = any("error" in self.check_of(name, peer) for name, peer in peers.items())
        return wrong or any((name, delay) not in done for name, delay in product(peers, delays))

    def copy_of(self, peer: Peer) -> Job:
        """What the log says about the copy that a peer reads; nothing if it needs none."""
        mark = self.mark(peer.copy, peer.copy_settings)
        lines = self.log.find("copy", peer=peer.copy, fingerprint=mark)
        return lines[-1] if lines else {}

    def check_of(self, name: str, peer: Peer) -> Job:
        """What the log says about the samples of a peer."""
        lines = self.log.find("check", peer=name, fingerprint=self.mark(vars(peer)))
        return lines[-1] if lines else {}


def compare(hashes: list[str], reference: list[str]) -> Job:
    """How many samples were right, and a checksum over those that were read."""
    wrong = Counter(hashes) - Counter(reference)  # twice the same sample is wrong, too
    everything = hashlib.sha256("".join(sorted(hashes)).encode()).hexdigest()[:16]
    return {
        "checked": len(hashes),
        "all": len(reference),
        "wrong": wrong.total(),
        "checksum": everything,
    }
