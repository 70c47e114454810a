"""The four ways to read the chunks of a batch, behind one configuration key.

Dask builds a graph of tasks for each batch. For windows of a few chunks that costs more than it
saves; ``dask_modes.py`` measures it.
"""

import atexit
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import dask

if TYPE_CHECKING:
    from distributed import Client

DaskMode = Literal["none", "single-threaded", "threads", "cluster"]

_clients: "dict[int, Client]" = {}  # of this process; a forked child must not use its parent's


def start_cluster(threads: int) -> str:
    """The address of a cluster of one process, started for this one unless it has one already.

    DASK_SCHEDULER_ADDRESS names a cluster that several training processes share.
    """
    if address := os.environ.get("DASK_SCHEDULER_ADDRESS"):
        return address
    if os.getpid() not in _clients:
        from distributed import Client, LocalCluster  # here: most trainings do without it

        cluster = LocalCluster(
            n_workers=1,
            threads_per_worker=threads,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",  # with ":0" other machines could read it
        )
        client = _clients[os.getpid()] = Client(cluster)
        # In this order: a cluster that ends before its client leaves errors in the log.
        atexit.register(cluster.close)
        atexit.register(client.close)
        print(f"dask      {cluster.scheduler_address}, dashboard {cluster.dashboard_link}")
    return str(_clients[os.getpid()].scheduler_info()["address"])


def compute_with(mode: DaskMode, threads: int, address: str) -> Callable[..., tuple[Any, ...]]:
    """``dask.compute`` with the scheduler of a mode."""
    settings: dict[str, Any] = {"scheduler": "single-threaded"}
    if mode == "threads":
        settings = {"scheduler": "threads", "num_workers": threads}
    elif mode == "cluster":
        from distributed import Client

        if os.getpid() not in _clients:  # a DataLoader's worker; it uses the main process's cluster
            client = _clients[os.getpid()] = Client(address)
            atexit.register(client.close)
        settings = {"scheduler": _clients[os.getpid()]}
    return lambda lazies: dask.compute(*lazies, **settings)
