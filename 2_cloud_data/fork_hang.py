"""Workers that are forked after a read from a store hang: see it, under a timeout, and the fix."""

# fork copies the memory of a process, but only the thread that calls it. The worker inherits pools
# of threads and an event loop that look alive, hands them a request, and waits for ever.

from torch.utils.data import DataLoader

from src.data.build import build_ocean
from src.data.usecase_cloud_dataset import CloudDataset
from src.run.errors import one_line_errors


def main() -> None:
    """Read in this process, then start workers in three ways."""
    build_ocean()
    dataset = CloudDataset("train")
    dataset[0]  # starts the threads that a fork does not copy
    for method in ("fork", "forkserver", "spawn"):
        loader = DataLoader(
            dataset, 4, num_workers=1, multiprocessing_context=method, timeout=30
        )
        try:
            next(iter(loader))
            print(f"{method:<12}a batch", flush=True)
        except RuntimeError as error:
            print(f"{method:<12}{error}", flush=True)


if __name__ == "__main__":
    with one_line_errors():
        main()
