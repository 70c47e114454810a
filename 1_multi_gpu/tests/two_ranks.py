"""Started by torchrun on each of two ranks: several trainings, which share the start's seconds.

The last argument is a JSON list of [script, how, arguments]. How is "", a mutation, or "RANK
NUMBER": that signal, to that rank, at its 50th mask; one or two before it are for validation.
"""

import contextlib
import importlib
import json
import signal
import sys
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch.distributed as dist
from src.model import pytorch_model

# One process group for all: torchrun's store has no keys for a second one.
dist.init_process_group("gloo")
RANK, destroy = dist.get_rank(), dist.destroy_process_group
dist.init_process_group = dist.destroy_process_group = lambda *_, **__: None


def broken(how: str) -> contextlib.AbstractContextManager:
    if how == "mean of means":  # each rank's own count, times the number of ranks
        return mock.patch(
            "src.model.lightning_module.sum_over_ranks", lambda n: n.detach() * 2
        )
    real, calls = pytorch_model.random_mask, []

    def random_mask(valid, index, seed, *rest):
        calls.append(seed)
        if how.startswith(f"{RANK} ") and len(calls) == 50:
            signal.raise_signal(int(how.split()[1]))
        return real(
            valid, index, seed + RANK if how == "masks by rank" else seed, *rest
        )

    return mock.patch.object(pytorch_model, "random_mask", random_mask)


for script, how, arguments in json.loads(sys.argv[-1]):
    sys.argv = [script, *arguments]
    try:
        with (
            broken(how),
            contextlib.redirect_stdout(sys.stdout),
        ):  # the script may replace it
            code = importlib.import_module(script).main()
    except SystemExit as stopped:
        code = stopped.code
    print(f"exit code of rank {RANK}: {code or 0}", flush=True)
destroy()
