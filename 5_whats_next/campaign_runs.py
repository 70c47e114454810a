"""One training that is ended, and what becomes of it; for kill_campaign.py."""

import contextlib
import csv
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from src.checkpoint_files import newest_intact
from src.cloud_folder import CloudFolder
from src.cloud_run import LATEST, read_copies
from src.data.s3_proxy import Fault, FaultyProxy
from src.data.s3_server import connect, disconnect

CHAPTER = Path(__file__).resolve().parent
TRAINING = [
    "--data.dataset=DummyDataset",
    "--data.dataset.sample_shape=[2,4,8,8]",
    "--data.dataset.num_samples=34",
    "--data.dataset.num_val_samples=34",
    "--data.batch_size=8",
    "--model.patch_size=[2,4,4]",
    "--model.embed_dim=16",
    "--model.decoder_embed_dim=16",
    "--trainer.max_epochs=3",
    "--trainer.log_every_n_steps=1",
    "--trainer.picture_every_n_epochs=0",
    "--trainer.accelerator=cpu",
    "--trainer.checkpoint_every_n_steps=1",
    "--trainer.upload_every_n_steps=1",
    "--trainer.run_name=run",
]
# What the network does while the training runs; made anew for each case.
NETWORK: dict[str, list[dict[str, Any]]] = {
    "503": [{"kind": "503", "method": "PUT", "times": 3}],
    "resets": [{"kind": "reset", "method": "PUT", "times": 3}],
    "hang": [{"kind": "stall", "method": "PUT", "path_contains": "last-", "times": 1}],
    "outage": [{"kind": "reset", "times": 40}],
    "latency": [],
}

ON_DISK, IN_CLOUD, IN_BOTH = "bit on disk", "bit in cloud", "bit in both"
BITS = (ON_DISK, IN_CLOUD, IN_BOTH)  # one of the newest checkpoint is flipped before it goes on
NOTHING_YET = "nothing there yet"


@dataclass
class Case:
    """One training that is ended, and how."""

    moment: str
    step: int
    ranks: int = 1
    workers: int = 0
    fault: str = ""  # of the network, or "tmpdir", or one of BITS
    results: dict[str, str] = field(default_factory=dict)  # of each way to go on

    @property
    def name(self) -> str:
        return f"{self.moment}-{self.step}-{self.ranks}-{self.workers}-{self.fault or 'none'}"


class Campaign:
    """Runs cases, and compares what is left of them with runs that nobody has disturbed."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.folder, self.endpoint = folder, endpoint
        self.expected = {ranks: self.reference(ranks) for ranks in (1, 2)}

    def reference(self, ranks: int) -> Path:
        output = self.folder / f"reference-{ranks}"
        self.train(output, Case("", 0, ranks), self.endpoint, "none", check=True)
        return output / "run"

    def train(
        self,
        output: Path,
        case: Case,
        endpoint: str,
        path: str,
        check: bool = False,
        more: dict[str, str] | None = None,
    ) -> int:
        """One process, with its ranks and workers; what it prints goes to a file."""
        ranks = [f"--trainer.devices={case.ranks}", f"--data.num_workers={case.workers}"]
        where = [f"--trainer.output_dir={output}", f"--trainer.cloud_storage_path={path}"]
        command = [sys.executable, "killed_run.py", *TRAINING, *ranks, *where]
        settings = {"WANDB_MODE": "disabled", "AWS_ENDPOINT_URL": endpoint, "OMP_NUM_THREADS": "1"}
        output.mkdir(parents=True, exist_ok=True)
        with (output / "log.txt").open("a") as log:
            process = subprocess.Popen(
                command,
                cwd=CHAPTER,
                env=os.environ | settings | (more or {}),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                code = process.wait(240)
            finally:  # also at Ctrl-C: nothing stays behind
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if check and code:
            sys.exit(f"error: a training failed; see {output / 'log.txt'}")
        return code

    def run(self, case: Case) -> Case:
        """End a training, and go on from what is left."""
        path = f"s3://bucket/{case.name.replace(' ', '-')}"
        output = self.folder / case.name.replace(" ", "-")
        more = {"KILL_AT": f"{case.moment}:{case.step}"}
        if case.fault == "tmpdir":
            more["TMPDIR"] = tempfile.mkdtemp(dir=other_file_system())
        with FaultyProxy(self.endpoint) as proxy:
            code = self.train_with_faults(output, case, proxy, path, more)
        if code == 0:
            case.results["killed"] = "no: it had ended before"
            return case
        case.results["lost"] = self.lost(case, output / "run", path)
        if case.fault in (ON_DISK, IN_BOTH):
            flip(output / "run" / "checkpoints" / "last.ckpt")
        if case.fault in (IN_CLOUD, IN_BOTH) and not flip_in_cloud(f"{path}/run"):
            case.results["cloud"] = "has one copy alone, and none to fall back on"
            return case
        # Each way of its own: the first one may not go on writing to what the second one needs.
        alone = f"{path}-alone"
        has_copy = copy_in_cloud(path, alone)
        self.train(output, case, self.endpoint, path if case.fault == IN_BOTH else "none")
        case.results["disk"] = self.compare(output / "run", case.ranks)
        if has_copy:
            lone = output.with_name(f"{output.name}-from-cloud")
            self.train(lone, case, self.endpoint, alone)
            case.results["cloud"] = self.compare(lone / "run", case.ranks)
        else:
            case.results["cloud"] = NOTHING_YET
        return case

    def train_with_faults(
        self, output: Path, case: Case, proxy: FaultyProxy, path: str, more: dict[str, str]
    ) -> int:
        """The faults begin when the first upload has arrived: the start is tested elsewhere."""
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(self.train, output, case, proxy.url, path, False, more)
            while case.fault in NETWORK and not running.done():
                if any(r.method == "PUT" and LATEST in r.path for r in list(proxy.requests)):
                    proxy.faults += [Fault(**fault) for fault in NETWORK[case.fault]]
                    proxy.delay = 0.1 if case.fault == "latency" else 0.0
                    break
                time.sleep(0.02)
            return running.result()

    def steps_in_cloud(self, path: str) -> int:
        copies = read_copies(CloudFolder(f"{path}/run"))
        return copies[0].step if copies else 0

    def lost(self, case: Case, run: Path, path: str) -> str:
        """How many steps lie between the end and the newest whole checkpoint, here and there."""
        done = case.step
        on_disk = newest_intact(run / "checkpoints")[1]
        return f"{max(0, done - on_disk)} {max(0, done - self.steps_in_cloud(path))}"

    def compare(self, run: Path, ranks: int) -> str:
        """Whether the rows of metrics.csv and all weights are those of the undisturbed run."""
        other = self.expected[ranks]
        try:
            same = rows(run) == rows(other) and all(
                one.equal(two) for one, two in zip(weights(run), weights(other), strict=True)
            )
        except (OSError, ValueError) as error:
            return f"failed: {error}"
        return "same" if same else "DIFFERENT"


def rows(run: Path) -> list[dict[str, str]]:
    """metrics.csv without what is a measurement of time."""
    with (run / "metrics.csv").open(newline="") as file:
        return [
            {k: v for k, v in row.items() if k != "samples_per_second"}
            for row in csv.DictReader(file)
        ]


def weights(run: Path) -> list[torch.Tensor]:
    state = torch.load(run / "checkpoints" / "last.ckpt", map_location="cpu", weights_only=True)
    return list(state["state_dict"].values())


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def flip_in_cloud(url: str) -> bool:
    """Change one bit of the newest checkpoint there, if there is another one; whether there is."""
    folder = CloudFolder(url)
    copies = read_copies(folder)
    if len(copies) < 2:
        return False
    newest = copies[0]
    with tempfile.TemporaryDirectory() as place:
        local = Path(place) / "copy"
        folder.get(newest.object, local, newest.sha256, 20.0)
        flip(local)
        there = f"{folder.path}/{newest.object}"
        folder.insist("writing", 20.0, lambda: folder.fs._put_file(str(local), there))
    return True


def copy_in_cloud(path: str, other: str) -> bool:
    """Copy what a run has there, if it has a checkpoint; whether it has."""
    if not read_copies(CloudFolder(f"{path}/run")):
        return False
    folder = CloudFolder(path)  # tries again, as a busy machine's server may not answer in time
    there = f"{other}/run"
    folder.insist("copying", 60.0, lambda: folder.fs._copy(f"{path}/run", there, recursive=True))
    return True


def other_file_system() -> str | None:
    """A folder that does not lie where the checkpoints do; None if this machine has no other."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


@contextlib.contextmanager
def server(folder: Path) -> Iterator[str]:
    """An S3 server with an empty bucket, named by the environment. Gives its address."""
    variables = connect(folder)
    os.environ.update(variables)
    try:
        import s3fs

        s3fs.S3FileSystem(skip_instance_cache=True).mkdir("bucket")
        yield variables["AWS_ENDPOINT_URL"]
    finally:
        disconnect(folder)
