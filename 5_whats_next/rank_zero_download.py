"""One process of each machine downloads, the others wait, then all of them read the same file.

  uv run torchrun --standalone --nproc-per-node 2 rank_zero_download.py
  uv run torchrun --standalone --nproc-per-node 2 rank_zero_download.py http://127.0.0.1:9/no.nc

The first one fetches the ocean data, from a server on this machine that it starts for the purpose.
The second one fails: nothing listens at port 9. Look how: no rank is left waiting for the others.
"""

import hashlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import iris_sample_data
import torch.distributed as dist
import xarray as xr
from src.data.cifar10 import download_file
from src.errors import UserError
from src.lightning_errors import one_line_errors
from src.lightning_ranks import shared_fate

FILE = Path(iris_sample_data.path) / "ostia_monthly.nc"


@contextmanager
def local_server() -> Iterator[str]:
    """An HTTP server for the ocean data, on a free port of this machine; gives the address."""
    handler = partial(SimpleHTTPRequestHandler, directory=FILE.parent)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/{FILE.name}"
        server.shutdown()


def main() -> int:
    """Download on local rank 0, then read on every rank."""
    if "LOCAL_RANK" not in os.environ:
        raise UserError("LOCAL_RANK is not set; start this script with torchrun, as it says on top")
    # torchrun starts one process for each device; LOCAL_RANK counts them on each machine. It is
    # the local rank that downloads, because machines do not share their disks.
    dist.init_process_group("gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    target = Path(tempfile.gettempdir()) / f"{os.environ['TORCHELASTIC_RUN_ID']}-{FILE.name}"
    try:
        # shared_fate ends with a meeting of all ranks. It is the barrier that lets nobody read
        # before the file is whole. And it tells them if the download failed: a plain
        # dist.barrier() would never be reached by the failed rank, and the others would wait there.
        with shared_fate():
            if local_rank == 0:
                md5 = hashlib.md5(FILE.read_bytes()).hexdigest()
                with local_server() as address:
                    download_file(sys.argv[1] if sys.argv[1:] else address, target, md5)
                print(f"rank {rank}: downloaded {target.stat().st_size:,} bytes", flush=True)
        with xr.open_dataset(target, engine="netcdf4") as data:
            field = data["surface_temperature"]
            print(f"rank {rank}: read {field.shape}, mean {float(field.mean()):.3f} K", flush=True)
        dist.barrier()  # nobody reads any more
    finally:
        if local_rank == 0:
            target.unlink(missing_ok=True)
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
