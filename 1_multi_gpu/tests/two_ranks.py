"""Started by torchrun on each of two ranks: several trainings, which share the start's seconds.

The last argument is a JSON list of [script, how, arguments]. How is "", a mutation, or "RANK
NUMBER": that signal, to that rank: in Lightning at its 50th mask, one or two of which are for
validation; by hand just after it has told the others, for the 49th time, that it has none.
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
from src.run.distributed import max_over_ranks

# One process group for all: torchrun's store has no keys for a second one.
dist.init_process_group("gloo")
RANK, destroy = dist.get_rank(), dist.destroy_process_group
dist.init_process_group = dist.destroy_process_group = lambda *_, **__: None


def broken(script: str, how: str) -> contextlib.AbstractContextManager:
    if how == "mean of means":  # each rank's own count, times the number of ranks
        return mock.patch(
            "src.model.lightning_module.sum_over_ranks", lambda n: n.detach() * 2
        )
    real, calls = pytorch_model.random_mask, []

    def send_signal(call: int) -> None:
        if how.startswith(f"{RANK} ") and len(calls) == call:
            signal.raise_signal(int(how.split()[1]))

    def random_mask(valid, index, seed, *rest):
        calls.append(seed)
        send_signal(50)
        is_broken = how == "masks by rank"
        return real(valid, index, seed + RANK if is_broken else seed, *rest)

    def ask_then_get_a_signal(number):
        calls.append(number)
        answer = max_over_ranks(number)
        send_signal(49)
        return answer

    if script == "lightning_train":
        return mock.patch.object(pytorch_model, "random_mask", random_mask)
    importlib.import_module(script)
    return mock.patch(f"{script}.max_over_ranks", ask_then_get_a_signal)


for script, how, arguments in json.loads(sys.argv[-1]):
    sys.argv = [script, *arguments]
    try:
        with broken(script, how), contextlib.redirect_stdout(sys.stdout):
            # The script may replace it.
            code = importlib.import_module(script).main()
    except SystemExit as stopped:
        code = stopped.code
    print(f"exit code of rank {RANK}: {code or 0}", flush=True)
destroy()
