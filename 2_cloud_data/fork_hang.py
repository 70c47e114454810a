"""Workers that are forked after a read from a store hang: see it, under a timeout, and the fix."""

# fork copies the memory of a process, but only the thread that calls it. The worker inherits pools
# of threads and an event loop that look alive, hands them a request, and waits for ever.

from src.data.usecase_cloud_dataset import CloudDataset
from src.errors import one_line_errors
from torch.utils.data import DataLoader


def first_batch(dataset: CloudDataset, method: str) -> str:
    """What comes of a worker that is started in this way now."""
    loader = DataLoader(dataset, 4, num_workers=1, multiprocessing_context=method, timeout=15)
    try:
        next(iter(loader))
        return "a batch"
    except Exception as error:
        return " ".join(str(error).split())[:80]


def main() -> None:
    """Read in this process, then start workers in three ways."""
    dataset = CloudDataset("train")
    dataset[0]
    for method in ("fork", "forkserver", "spawn"):
        print(f"{method:<12}{first_batch(dataset, method)}", flush=True)


if __name__ == "__main__":
    with one_line_errors():
        main()
