"""Seeds: what has to be set so that the same command gives the same bits."""

import os
import random
import signal

import numpy as np
import torch
from torch.utils.data import get_worker_info


def set_seed(seed: int, deterministic: bool = True) -> None:
    """Seed Python, NumPy and PyTorch (all devices), and choose repeatable kernels."""
    # Source: https://docs.pytorch.org/docs/stable/notes/randomness.html
    random.seed(seed)
    np.random.seed(seed % 2**32)  # NumPy takes no larger one
    torch.manual_seed(seed)
    # cuDNN may race several kernels against each other (benchmark) and take the fastest, which is
    # another one next time. Deterministic kernels always add in the same order, and are slower.
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = not deterministic
    if deterministic:
        os.environ.setdefault(
            "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
        )  # read when CUDA starts
    torch.use_deterministic_algorithms(deterministic, warn_only=True)


def worker_init_fn(worker_id: int) -> None:
    """Prepare a DataLoader worker; runs in the worker, once."""
    # PyTorch has seeded random, torch and numpy.random here, differently in each worker. It does
    # not know a generator that the dataset keeps for itself (rng): each worker has the same copy,
    # and would draw the same numbers as its neighbour.
    if (info := get_worker_info()) and hasattr(info.dataset, "rng"):
        info.dataset.rng = np.random.default_rng(info.seed)
    # A terminal sends Ctrl-C to all processes, a cluster SIGTERM. The training then finishes its
    # step and saves a checkpoint, for which it may need one more batch. A second SIGTERM ends a
    # worker, because PyTorch sends it to one that hangs.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(
        signal.SIGTERM, lambda number, _: signal.signal(number, signal.SIG_DFL)
    )
