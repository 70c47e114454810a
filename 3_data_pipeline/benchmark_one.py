"""Measure one configuration of a loader; benchmark_datapipeline_configurations.py starts this.

It reads the configuration as JSON from its standard input, and prints the result as JSON. A process
of its own has no caches, workers or connections of the configuration before.
"""

import inspect
import json
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import yaml
from src.data.loader_settings import worker_settings
from src.data.look_ahead import look_ahead
from src.data.orders import order_of
from src.device import choose_device
from src.errors import UserError, one_line_errors
from src.model.pytorch_model import MaskedAutoencoder
from src.reproducibility import worker_init_fn
from torch.utils.data import DataLoader, Dataset, default_collate
from utils import CHAPTER, Processes, import_path

LOADER = {
    "batch_size": 16,
    "num_workers": 0,
    "prefetch_factor": 2,
    "persistent_workers": True,
    "multiprocessing_context": "forkserver",
    "pin_memory": False,
}


class Model:
    """Stands for the model: it takes a batch and some time.

    A number of seconds is waited for, as one waits for a GPU; ``real`` trains the chapter's model
    on this machine's device, with ``settings`` instead of those of config.yaml.
    """

    def __init__(
        self,
        step_time: float | str,
        sample_shape: tuple[int, int, int, int],
        settings: dict[str, Any],
    ) -> None:
        self.step_time = step_time
        if step_time == "real":
            written = yaml.safe_load((CHAPTER / "config" / "config.yaml").read_text())["model"]
            self.device = choose_device("auto")
            self.model = MaskedAutoencoder(sample_shape, **written | settings).to(self.device)
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def step(self, batch: Any) -> None:
        """Use a batch."""
        if self.step_time != "real":
            time.sleep(float(self.step_time))
            return
        x, index = batch
        output = self.model(x.to(self.device), index.to(self.device), epoch=0)
        self.optimizer.zero_grad()
        (output.squared_error / output.valid_count).backward()
        self.optimizer.step()


class Timed(Dataset):
    """A dataset whose batches know when they were asked for and when they were there.

    The clock is the same for all processes of a machine, so workers can be compared.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.asked = dataset, dict[tuple[int, ...], float]()
        self.batches_ahead = getattr(dataset, "batches_ahead", 0)

    def __len__(self) -> int:
        return len(self.dataset)

    def prefetch(self, indices: list[int]) -> None:
        self.asked.setdefault(tuple(indices), time.perf_counter())
        self.dataset.prefetch(indices)

    def forget(self) -> None:
        self.asked.clear()
        self.dataset.forget()

    def __getitems__(self, indices: list[int]) -> tuple[list[Any], float, float]:
        asked = self.asked.pop(tuple(indices), time.perf_counter())
        if hasattr(self.dataset, "__getitems__"):
            samples = self.dataset.__getitems__(indices)
        else:
            samples = [self.dataset[index] for index in indices]
        return samples, asked, time.perf_counter()


def collate(timed: Any) -> tuple[Any, float, float]:
    """A batch as a DataLoader makes it, and its two times."""
    samples, asked, there = timed
    return default_collate(samples), asked, there


class Order(torch.utils.data.Sampler[list[int]]):
    """The batches of the first epochs, one after the other, as the training has them."""

    def __init__(self, dataset: Any, batch_size: int, batches: int) -> None:
        self.order, self.batch_size, self.batches = order_of(dataset), batch_size, batches
        self.per_epoch = len(dataset) // batch_size
        if not self.per_epoch:
            raise UserError(
                f"batch_size: {batch_size} does not fit the {len(dataset)} samples of the dataset"
            )

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(self.batches):
            epoch, place = divmod(number, self.per_epoch)
            if not place:
                order = self.order(0, epoch)
            yield order[place * self.batch_size : (place + 1) * self.batch_size]

    def __len__(self) -> int:
        return self.batches


def measure(configuration: dict[str, Any]) -> dict[str, Any]:
    """Serve the batches to the model. Times in seconds, one for each batch after the warm-up.

    ``loads`` has two for each: when the batch was asked for, and when it was there.
    """
    began = time.perf_counter()
    kind = import_path(configuration["dataset"])
    arguments = dict(configuration.get("dataset_args", {}))
    if "split" in inspect.signature(kind).parameters:
        arguments = {"split": "train"} | arguments
    dataset = kind(**arguments)
    settings = {key: configuration.get(key, value) for key, value in LOADER.items()}
    workers, size = settings["num_workers"], settings["batch_size"]
    warmup, batches = configuration["warmup"], configuration["batches"]
    # At the end as many batches are under way as in the middle of an epoch.
    ahead = workers * settings["prefetch_factor"] or getattr(dataset, "batches_ahead", 0)
    order, timed = Order(dataset, size, warmup + batches + ahead), Timed(dataset)
    loader = DataLoader(
        timed,
        batch_sampler=look_ahead(order, timed, workers),
        collate_fn=collate,
        num_workers=workers,
        pin_memory=settings["pin_memory"],
        worker_init_fn=worker_init_fn,
        generator=torch.Generator().manual_seed(0),
        **worker_settings(
            workers,
            settings["persistent_workers"],
            settings["prefetch_factor"],
            settings["multiprocessing_context"],
        ),
    )
    built = time.perf_counter() - began
    waits, steps, loads, first, measured = [], [], [], 0.0, 0.0
    before = getattr(dataset, "counts", torch.zeros(1, 3, dtype=torch.int64)).sum(0).clone()
    start = time.perf_counter()
    served = iter(loader)
    for number in range(warmup + batches):
        asked = time.perf_counter()
        batch, *load = next(served)
        arrived = time.perf_counter()
        if number == 0:
            first = arrived - start
            x = batch[0] if isinstance(batch, list | tuple) else batch
            variables, months, height, width = x.shape[1:]
            shape = (variables, months, height, width)
            model = Model(configuration["train_step_time"], shape, configuration["model"])
        model.step(batch)
        if number >= warmup:
            measured = measured or asked
            loads.append([round(moment - measured, 6) for moment in load])
            waits.append(arrived - asked)
            steps.append(time.perf_counter() - arrived)
    after = getattr(dataset, "counts", torch.zeros(1, 3, dtype=torch.int64)).sum(0)
    total = sum(waits) + sum(steps)
    requests, retries, num_bytes = (after - before).tolist()
    if workers:
        served._shutdown_workers()  # type: ignore[attr-defined]
    samples = size * (warmup + batches)
    return {
        "seconds_to_open": built,
        "seconds_to_first_batch": first,
        "waits": [round(wait, 6) for wait in waits],
        "steps": [round(step, 6) for step in steps],
        "loads": loads,
        "samples_per_second": size * batches / total,
        "busy": sum(steps) / total,
        "sample_bytes": x[0].numel() * x.element_size(),
        "requests_per_sample": requests / samples,
        "kilobytes_per_sample": num_bytes / samples / 1e3,
        "retries": retries,
    }


if __name__ == "__main__":
    with one_line_errors():
        warnings.filterwarnings("ignore", message=".*(worker processes in total|no accelerator)")
        with Processes() as processes:
            result = measure(json.load(sys.stdin))
        result |= {"peak_memory_mb": processes.peak_mb, "cpu_seconds": processes.seconds}
        print(json.dumps(result))
