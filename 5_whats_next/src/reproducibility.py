"""Seeds: what has to be set so that the same command gives the same bits."""

import multiprocessing
import os
import random
import signal
import threading
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info


def set_seed(seed: int, deterministic: bool = True) -> None:
    """Seed Python, NumPy and PyTorch (all devices) of this process.

    ``deterministic`` makes CUDA repeat itself too: cudnn picks the same kernel every time instead
    of racing them against each other (benchmark), and only among those that always add up in the
    same order.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.benchmark = not deterministic
    if deterministic:
        # cuBLAS reads this once, when CUDA starts:
        # https://docs.nvidia.com/cuda/cublas/#results-reproducibility
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Does what torch.use_deterministic_algorithms does, but does not import the compiler for it.
    torch.set_deterministic_debug_mode("warn" if deterministic else "default")
    leave_memory_unfilled()


def leave_memory_unfilled() -> None:
    """Let deterministic mode not write NaN to each new tensor before its values.

    It shows who reads what nobody has written. Nothing here does, and it costs a pass over memory
    for each tensor: https://docs.pytorch.org/docs/stable/deterministic.html
    """
    settings: Any = torch.utils.deterministic
    settings.fill_uninitialized_memory = False


def worker_init_fn(worker_id: int) -> None:
    """Prepare a DataLoader worker; runs in the worker, once.

    PyTorch has already seeded ``random``, ``torch`` and ``numpy.random`` here, differently in each
    worker. It cannot know of a generator that the dataset keeps for itself: each worker starts with
    the same copy, and draws the same "random" numbers as its neighbour. If the dataset has one
    (``rng``), replace it.
    """
    info = get_worker_info()
    if info is not None and hasattr(info.dataset, "rng"):
        info.dataset.rng = np.random.default_rng(info.seed)
    # Ctrl-C reaches all processes of a terminal, a cluster's SIGTERM all processes of a job. The
    # training then finishes its step and saves a checkpoint, for which it may need one more batch.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(10))
    threading.Thread(target=end_with_the_training, daemon=True).start()


def end_with_the_training() -> None:
    """End this worker when the training process has gone, however it went.

    PyTorch's workers look whether their parent is still the same. That of a forkserver's worker,
    the default from Python 3.14 on, is the forkserver: they would outlive a killed training.
    """
    if training := multiprocessing.parent_process():
        wait([training.sentinel])
        os._exit(1)
