"""Measure one configuration of a loader; benchmark_datapipeline_configurations.py starts this.

It reads the configuration as JSON from its standard input, and prints the result as JSON. A process
of its own has no caches, workers or connections of the configuration before.
"""

import inspect
import json
import sys
import time
import warnings
from typing import Any

import torch
import yaml
from src.data.loader_settings import worker_settings
from src.data.look_ahead import look_ahead
from src.data.sampler import epoch_order
from src.device import choose_device
from src.errors import one_line_errors
from src.model.pytorch_model import MaskedAutoencoder
from src.reproducibility import worker_init_fn
from torch.utils.data import DataLoader
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


class Order(torch.utils.data.Sampler[list[int]]):
    """The batches of the first epochs, one after the other."""

    def __init__(self, num_samples: int, batch_size: int, batches: int) -> None:
        self.num_samples, self.batch_size, self.batches = num_samples, batch_size, batches

    def __iter__(self) -> Any:
        order: list[int] = []
        epoch = 0
        for _ in range(self.batches):
            while len(order) < self.batch_size:
                order += epoch_order(self.num_samples, 0, epoch)
                epoch += 1
            yield order[: self.batch_size]
            del order[: self.batch_size]

    def __len__(self) -> int:
        return self.batches


def measure(configuration: dict[str, Any]) -> dict[str, Any]:
    """Serve the batches to the model. Times in seconds, one for each batch after the warm-up."""
    began = time.perf_counter()
    kind = import_path(configuration["dataset"])
    arguments = dict(configuration.get("dataset_args", {}))
    if "split" in inspect.signature(kind).parameters:
        arguments = {"split": "train"} | arguments
    dataset = kind(**arguments)
    settings = {key: configuration.get(key, value) for key, value in LOADER.items()}
    workers, size = settings["num_workers"], settings["batch_size"]
    warmup, batches = configuration["warmup"], configuration["batches"]
    order = Order(len(dataset), size, warmup + batches + getattr(dataset, "batches_ahead", 0))
    loader = DataLoader(
        dataset,
        batch_sampler=look_ahead(order, dataset, workers),
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
    sample = dataset[0]
    x = sample[0] if isinstance(sample, tuple) else sample
    variables, months, height, width = x.shape
    shape = (variables, months, height, width)
    model = Model(configuration["train_step_time"], shape, configuration["model"])
    waits, steps, first = [], [], 0.0
    before = getattr(dataset, "counts", torch.zeros(1, 3, dtype=torch.int64)).sum(0).clone()
    start = time.perf_counter()
    served = iter(loader)
    for number in range(warmup + batches):
        asked = time.perf_counter()
        batch = next(served)
        arrived = time.perf_counter()
        model.step(batch)
        if number == 0:
            first = arrived - start
        if number >= warmup:
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
        "samples_per_second": size * batches / total,
        "busy": sum(steps) / total,
        "sample_bytes": x.numel() * x.element_size(),
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
