"""Started by torchrun on each rank: what happens if a download fails, or one rank alone.

The arguments are those of rank_checks.py. Each failure is caught where the process would end, so
that all share one start; the results are how it would have ended. The last one ends it.
"""

import http.server
import json
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from src.errors import UserError
from src.lightning_errors import one_line_errors
from src.lightning_ranks import SharedError, shared_fate, speaks

from tests.lightning_runs import run_on_two_ranks
from tests.rank_checks import DEVICES, SCRIPTS, draws, on_each_rank

# The causes, and the line that each ends with.
LINES = {
    "404": r"data.dataset.url: cannot download http://127.0.0.1:\d+/404: .*404",
    "checksum": "data.dataset.* has the MD5 checksum .* expected 0{32}",
    "cut": "data.dataset.* it is truncated",
    "rank 1": r"data.dataset.path: no file .*rank 1/archive.* \(rank 1 of 2\)$",
}


class Archive(NamedTuple):
    """A file, and where it is served: whole, in half (/cut), or not at all (/404)."""

    path: Path
    md5: str
    url: str
    asked: list[str]  # what was asked of the server


@contextmanager
def serve(path: Path, md5: str) -> Iterator[Archive]:
    """A web server on a free port of this machine."""
    asked, twice = [], threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            if self.path == "/404":
                return self.send_error(404)
            if asked.count(self.path) > 1:
                twice.set()
            if self.path.startswith("/whole/"):
                twice.wait(1)  # or a second rank might come later, and find the file there
            content = path.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if self.path == "/cut" else content)

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Archive(path, md5, f"http://127.0.0.1:{server.server_port}", asked)
        finally:
            server.shutdown()
            thread.join()


class Ranks(NamedTuple):
    """What both ranks wrote, and what the launch printed."""

    folder: Path
    seen: list[dict]
    code: int
    printed: str


def launch(name: str, folder: Path, archive: Archive) -> Ranks:
    code, printed = run_on_two_ranks("-m", name, str(folder), archive.url, archive.md5)
    paths = [folder / f"rank_{rank}.json" for rank in (0, 1)]
    assert all(path.exists() for path in paths), printed
    return Ranks(folder, [json.loads(path.read_text()) for path in paths], code, printed)


def left_over(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def assert_one_line(code: int, printed: str, cause: str) -> None:
    assert code != 0
    errors = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, printed
    assert re.match(f"error: {LINES[cause]}", errors[0])


def shared_failures(rank: int) -> dict[str, list]:
    """What shared_fate raises where some ranks fail, and whether this rank reports it."""
    found = {}
    for failing in ([], [0], [1], [0, 1]):
        error = None
        try:
            with shared_fate():
                if rank in failing:
                    raise UserError(f"failure {rank}")
        except SharedError as shared:
            error = shared
        found[str(failing)] = [str(error), speaks(error)] if error else []
    return found


def arguments_of(script: str, cause: str, folder: Path, url: str, md5: str) -> list[str]:
    """A training with CIFAR-10 that fails for ``cause``; what it writes goes to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    dataset = {
        "404": {"download": True, "url": f"{url}/404"},
        "checksum": {"download": True, "url": f"{url}/whole", "md5": "0" * 32},
        "cut": {"download": True, "url": f"{url}/cut", "md5": md5},
        "rank 1": {},
    }[cause]
    dataset = {"path": folder / "archive", **dataset}
    options = [f"--data.dataset.{key}={value}" for key, value in dataset.items()]
    trainer = ["--trainer.accelerator=cpu", f"--trainer.output_dir={folder / 'output'}"]
    model = ["--model.patch_size=[1,8,8]", "--data.dataset=CIFAR10Dataset"]
    return [*model, *options, *trainer, *DEVICES[script]]


def run(script: str, arguments: list[str]) -> None:
    """The script, as from the command line; ends the process."""
    with mock.patch.object(sys, "argv", [script, *arguments]), one_line_errors():
        sys.exit(SCRIPTS[script].main())


def how_it_ends(script: str, arguments: list[str]) -> str | int | None:
    """The line that the process would end with, or its exit code."""
    try:
        run(script, arguments)
    except SystemExit as end:
        return end.code


def main(given: Sequence[str]) -> None:
    folder, url, md5 = Path(given[0]), given[1], given[2]

    def work(rank: int) -> dict:
        failures = shared_failures(rank)
        ends: dict[str, dict] = {script: {} for script in SCRIPTS}
        for script in SCRIPTS:
            for cause in LINES:
                arguments = arguments_of(script, cause, folder / script / cause, url, md5)
                if cause == "rank 1" and rank == 0:  # which finds the file, unlike rank 1
                    arguments += [f"--data.dataset.path={folder / 'archive'}"]
                    arguments += [f"--data.dataset.md5={md5}"]
                ends[script][cause] = how_it_ends(script, arguments)
        return {"failures": failures, "draws": draws(), "ends": ends}

    on_each_rank(work, folder)
    run("by hand", arguments_of("by hand", "404", folder / "by hand" / "404", url, md5))


if __name__ == "__main__":
    main(sys.argv[1:])
