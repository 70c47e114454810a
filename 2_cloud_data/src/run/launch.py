"""One process for each device of this machine, all ended when one of them fails.

torchrun does the same from the command line, and SLURM's srun on several machines.
"""

import logging
import signal
import sys
import tempfile

import torch.multiprocessing
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def launch(num_processes: int) -> int:
    """Run this program's command line once for each rank; returns the exit code for all.

    It is that of the rank that failed first, or 128 and the number of the signal that came.
    """
    # Its messages about the other ranks would bury the error of the one that failed.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=num_processes,
            rdzv_backend="c10d",
            rdzv_endpoint="127.0.0.1:0",  # any free port
            run_id="launch",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(logs),
        )
        try:
            elastic_launch(config, sys.executable)(*sys.orig_argv[1:])
        except SignalException as error:
            return 128 + error.sigval
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            if failure.exitcode > 0:
                return failure.exitcode
            # It could not say anything itself.
            print(f"rank {rank} was ended by signal {-failure.exitcode}")
            return 128 - failure.exitcode
    return 0


def end_with_launcher() -> None:
    """Let Linux kill this rank when its launcher has been killed: it would train on, unseen.

    elastic_launch gives each rank a session of its own, which a SIGKILL to the launcher's group
    does not reach. PyTorch's own spawn calls this private function for the same reason.
    """
    torch.multiprocessing._prctl_pr_set_pdeathsig(signal.SIGKILL)  # type: ignore[attr-defined]
