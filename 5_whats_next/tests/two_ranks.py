"""Started by torchrun on each rank: runs several trainings one after the other.

Starting two processes takes many seconds, most of them to import torch, so the tests of two ranks
share one start. The first argument is a JSON list of [script, mutation, arguments].
"""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import lightning_train
import pytorch_ddp_train
import src.model.lightning_module as lightning_module
import src.model.pytorch_model as pytorch_model
import torch.distributed as dist

SCRIPTS = {"lightning": lightning_train, "by hand": pytorch_ddp_train}


@contextlib.contextmanager
def mutated(mutation: str) -> Iterator[None]:
    """Break the training in one of the ways that the same-curve test has to notice."""
    sums, random_mask = lightning_module.sum_over_ranks, pytorch_model.random_mask
    if mutation == "mean of means":
        # The count of this rank alone, times the number of ranks: each rank's own mean.
        lightning_module.sum_over_ranks = lambda *ns: [n * dist.get_world_size() for n in ns]
    if mutation == "masks by rank":
        pytorch_model.random_mask = lambda valid, index, seed, *rest: random_mask(
            valid, index, seed + dist.get_rank(), *rest
        )
    try:
        yield
    finally:
        lightning_module.sum_over_ranks, pytorch_model.random_mask = sums, random_mask


# One process group for all: it cannot be made twice with the keys of the same launch.
dist.init_process_group("gloo")
destroy = dist.destroy_process_group
dist.init_process_group = dist.destroy_process_group = lambda *_, **__: None
for script, mutation, arguments in json.loads(sys.argv[1]):
    sys.argv = [script, *arguments]
    with mutated(mutation):
        assert SCRIPTS[script].main() == 0
destroy()
