"""One process for each device of this machine, all ended when one of them fails.

torchrun and SLURM's srun do the same. Lightning can start processes too, but then rank 0 starts and
watches the others (https://github.com/Lightning-AI/pytorch-lightning/pull/18218). Nobody watches
rank 0: if it fails alone, the others wait in NCCL for Lightning's timeout of 30 minutes.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from src.run.signals import StopRequest

# Seconds that the others have to end, once one of them has failed or stopped.
SECONDS_FOR_OTHERS = float(os.environ.get("SECONDS_AFTER_SIGTERM") or 30)


def has_rank() -> bool:
    """Whether a launcher has started this process already: this one, torchrun or srun."""
    # A shell of `srun --pty bash` has a number, too; Lightning goes by the job's name as well.
    is_shell = os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    is_task = "SLURM_PROCID" in os.environ and not is_shell
    return "LOCAL_RANK" in os.environ or is_task


def launch(num_processes: int) -> int:
    """Run this program's command line once for each rank; returns the exit code for all.

    Ctrl-C and SIGTERM are handed on to all of them; a second Ctrl-C kills them.
    """
    environment = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "NODE_RANK": "0",
        "WORLD_SIZE": str(num_processes),
    }
    command = [sys.executable, *sys.orig_argv[1:]]
    ranks: list[subprocess.Popen] = []
    try:
        with reserved_port() as port, closing(StopRequest()) as stop:
            environment["MASTER_PORT"] = str(port)
            for rank in range(num_processes):
                environment["LOCAL_RANK"] = environment["RANK"] = str(rank)
                ranks.append(subprocess.Popen(command, env=environment))
            return wait_for_all(ranks, stop)
    finally:
        for process in ranks:
            process.kill()


@contextmanager
def reserved_port() -> Iterator[int]:
    """A free port for the ranks to meet at, which no other program gets meanwhile."""
    # Until rank 0 listens, seconds later, another program's connection could take it. A socket that
    # is bound, and does not listen, keeps it; REUSEADDR lets rank 0 listen all the same.
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        if sys.platform == "darwin":  # where it would take rank 0's connections
            reserved.close()
        yield port


def wait_for_all(ranks: list[subprocess.Popen], stop: StopRequest) -> int:
    """Wait until all have ended; returns the exit code of the first that has failed, else 0.

    After a signal it is 128 and the signal's number.
    """
    is_stopping = False
    while True:
        codes = [process.poll() for process in ranks]  # None: it still runs
        if any(codes):  # one has failed
            break
        if all(code == 0 for code in codes):
            return 128 + stop.number if stop.number else 0
        if stop.number and not is_stopping:
            end_softly(ranks)
            is_stopping = True
        time.sleep(0.05)

    # The others may wait for this one in a collective, in which they notice no signal but SIGKILL.
    # It comes after SECONDS_FOR_OTHERS seconds, when launch returns.
    first = next(rank for rank, process in enumerate(ranks) if process.returncode)
    if not is_stopping:
        end_softly(ranks)
    deadline = time.monotonic() + SECONDS_FOR_OTHERS
    while any(p.poll() is None for p in ranks) and time.monotonic() < deadline:
        time.sleep(0.05)

    if stop.number:
        # Codes 2 to 127 are rank 0's own. 1 may only mean that it has lost another rank, and 143
        # that it got the SIGTERM that was handed on.
        own_code = ranks[0].returncode or 0
        return own_code if 1 < own_code < 128 else 128 + stop.number
    code = ranks[first].returncode
    code = 128 - code if code < 0 else code  # a negative one is that of a signal
    if code not in (130, 143):
        print(f"rank {first} failed first, with exit code {code}", file=sys.stderr)
    return code


def end_softly(ranks: list[subprocess.Popen]) -> None:
    """Send SIGTERM, which lets them save."""
    for process in ranks:
        process.terminate()
