"""Time a few real steps on one device, and what the whole training follows from them."""

import os
import statistics
import time
from collections.abc import Generator
from contextlib import closing
from typing import Any

import psutil
import torch
from torch import Tensor

from src.data.lightning_datamodule import FieldDataModule
from src.device import choose_device
from src.optim import make_optimizer
from src.preflight.plan import Finding, Plan, duration
from src.reproducibility import set_seed

WARM_UP = 3  # steps; the first one compiles, allocates, and waits for the first batch
DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


def batches(plan: Plan) -> Generator[tuple[Tensor, Tensor], None, None]:
    """One device's batches, through the loader of the training, without end."""
    given = vars(plan.config.data) | {
        "batch_size": plan.device_batch,
        "dataset": lambda split: plan.sets[split == "val"],
    }
    data = FieldDataModule(**given, seed=plan.config.seed_everything)
    data.setup("fit")
    loader: Any = data.train_dataloader()
    try:
        while True:
            yield from loader
    finally:
        loader._iterator = None  # ends the workers now


def time_steps(plan: Plan) -> list[float]:
    """Seconds of each step after the warm-up; the batch's way through loader and copy included."""
    device = choose_device(plan.config.trainer.accelerator)
    settings, model = plan.config.trainer, plan.model
    assert model is not None
    set_seed(plan.config.seed_everything, settings.deterministic)
    model.to(device).train()
    epoch, total = plan.num_steps
    optimizer, _ = make_optimizer(model, max(1, total), **vars(plan.config.optimizer))
    dtype = DTYPES.get(plan.setting("precision", "32-true"))
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds, start = [], time.perf_counter()
    with closing(batches(plan)) as source:
        for number in range(WARM_UP + plan.steps):
            x, index = (tensor.to(device, non_blocking=True) for tensor in next(source))
            for part, numbers in zip(
                x.chunk(settings.micro_batches), index.chunk(settings.micro_batches), strict=True
            ):
                with torch.autocast(device.type, dtype, enabled=dtype is not None):
                    output = model(part, numbers, number // max(1, epoch))
                loss = output.squared_error / output.valid_count.clamp(min=1)
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.gradient_clip_val)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if device.type != "cpu":
                torch.get_device_module(device).synchronize()
            now = time.perf_counter()
            seconds.append(now - start)
            start = now
        plan.peak_bytes = memory_used(device)
    return seconds[WARM_UP:]


def memory_used(device: torch.device) -> int:
    """Bytes on a GPU at most so far; else those of this process and its workers now."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    children = psutil.Process().children(recursive=True)
    # The server of s3://embedded, which may be a child too, has a session of its own.
    family = [child for child in children if os.getsid(child.pid) == os.getsid(0)]
    return sum(process.memory_info().rss for process in (psutil.Process(), *family))


def speed(plan: Plan) -> Finding:
    """A step, an epoch, the training."""
    try:
        plan.step_seconds = statistics.median(time_steps(plan))
    except torch.OutOfMemoryError:
        found = f"{plan.device_batch} samples do not fit into the memory of a device"
        return Finding("not ok", found, "lower data.batch_size, or raise trainer.micro_batches")
    epoch, total = plan.num_steps
    return Finding(
        "ok",
        f"{plan.step_seconds * 1000:.1f} ms a step (median of {plan.steps}, one device), "
        f"{duration(plan.step_seconds * epoch)} an epoch of {epoch:,} steps, "
        f"{duration(plan.step_seconds * total)} for all {total:,}; validation, pictures and the "
        "exchange between devices come on top",
    )


def cost(plan: Plan) -> Finding:
    """What the training costs, if somebody says what an hour does."""
    if plan.price_per_hour is None:
        return Finding("ok", "not asked for: --price_per_hour")
    _, total = plan.num_steps
    hours = plan.step_seconds * total / 3600
    return Finding("ok", f"{hours * plan.price_per_hour:,.2f} at {plan.price_per_hour:g} an hour")
