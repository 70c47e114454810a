"""What the times of the steps say: medians, shares, the rank that is last, and a verdict."""

import csv
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from step_timer import PARTS, Batch

# Shares of a step above which a part is worth a look: the first two are the blog's.
SERIOUS, NOTABLE = 0.4, 0.3
LIMITS = {"transfer": 0.1, "optimizer": 0.25, "overhead": 0.2}
ADVICE = {
    "data": "the loader: run chapter 3's ceiling.py and choose_settings.py; more batches ahead, a "
    "packed copy, a cache, workers",
    "transfer": "the copies to the device: data.pin_memory true, smaller numbers, fewer tensors",
    "forward": "the model's forward pass: profiler.py shows its operators; fused attention, "
    "torch.compile, --precision bf16-mixed",
    "backward": "the gradients: profiler.py shows the operators; what speeds the forward pass up, "
    "speeds this up; activation checkpointing off, if it is on",
    "optimizer": "the optimiser: fused AdamW, or a larger batch, so that it runs less often",
    "overhead": "what lies between: logging every step, callbacks, .item() and other waits for the "
    "device; profiler.py's advanced report names the functions",
}


def summarise(ranks: Sequence[Sequence[Batch]], warmup: int) -> dict[str, Any]:
    """Milliseconds and shares of the parts, on the first rank; what the others tell.

    Args:
        ranks: the batches of each rank.
        warmup: number of first batches that do not count.
    """
    batches = ranks[0][warmup:]
    whole = sum(batch.total for batch in batches)
    parts = {}
    for part in PARTS:
        values = [1e3 * batch.seconds[part] for batch in batches]
        parts[part] = spread(values) | {"share": round(sum(values) / 1e3 / whole, 4)}
    found: dict[str, Any] = {
        "batches": len(batches),
        "warmup": warmup,
        "first_batch_ms": round(1e3 * ranks[0][0].total, 2),
        "total_ms": spread([1e3 * batch.total for batch in batches]),
        "parts_ms": parts,
    }
    if len(ranks) > 1:
        # In backward the ranks wait for each other; what each does before is its own.
        own = [median(before_backward(batch) for batch in rank[warmup:]) for rank in ranks]
        found["ranks_ms"] = [round(1e3 * seconds, 3) for seconds in own]
        found["slowest_rank"] = max(range(len(own)), key=own.__getitem__)
    found["verdict"] = verdict(found)
    return found


def before_backward(batch: Batch) -> float:
    return sum(batch.seconds[part] for part in ("data", "transfer", "forward"))


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, mean, and where nine tenths of the values end."""
    high = quantiles(values, n=10)[-1] if len(values) > 1 else values[0]
    found = {"median": median(values), "mean": sum(values) / len(values), "p90": high}
    return {key: round(value, 3) for key, value in found.items()}


def verdict(summary: dict[str, Any]) -> list[str]:
    """The largest share, the likely cause, and what to try."""
    shares = {part: values["share"] for part, values in summary["parts_ms"].items()}
    largest = max(shares, key=shares.__getitem__)
    lines = [f"largest: {largest}, {shares[largest]:.0%} of a step"]
    if shares["data"] > SERIOUS:
        lines.append(f"data above {SERIOUS:.0%}: the step waits for its data; {ADVICE['data']}")
    elif shares["data"] > NOTABLE:
        lines.append(f"data above {NOTABLE:.0%}: worth a look; {ADVICE['data']}")
    elif largest in ("forward", "backward"):
        lines.append(f"the device computes; try {ADVICE[largest]}")
    for part, limit in LIMITS.items():
        if shares[part] > limit:
            lines.append(f"{part} above {limit:.0%}: {ADVICE[part]}")
    if (first := summary["first_batch_ms"]) > 5 * summary["total_ms"]["median"]:
        lines.append(f"the first batch took {first:.0f} ms: start-up, caches or a compiler")
    if "slowest_rank" in summary:
        lines.append(f"last to reach backward: rank {summary['slowest_rank']}; the others wait")
    return lines


def report(summary: dict[str, Any]) -> str:
    """A table for people."""
    head = f"{'ms per batch':<14}{'median':>10}{'mean':>10}{'p90':>10}{'share':>9}"
    lines = [f"{summary['batches']} batches after {summary['warmup']} of warm-up", head]
    for part, values in summary["parts_ms"].items():
        numbers = "".join(f"{values[key]:>10.2f}" for key in ("median", "mean", "p90"))
        lines.append(f"{part:<14}{numbers}{values['share']:>9.1%}")
    total = summary["total_ms"]
    numbers = "".join(f"{total[key]:>10.2f}" for key in ("median", "mean", "p90"))
    lines.append(f"{'total':<14}{numbers}")
    if "ranks_ms" in summary:
        each = ", ".join(f"{n}: {value:.2f}" for n, value in enumerate(summary["ranks_ms"]))
        lines.append(f"until backward, by rank (median ms): {each}")
    return "\n".join([*lines, *summary["verdict"]])


def write_table(path: Path, ranks: Sequence[Sequence[Batch]], warmup: int) -> None:
    """One row for each batch of each rank, in milliseconds."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["rank", "epoch", "batch", "warmup", *(f"{p}_ms" for p in PARTS), "total_ms"])
        for rank, batches in enumerate(ranks):
            for number, batch in enumerate(batches):
                times = [round(1e3 * batch.seconds[part], 4) for part in PARTS]
                row = [rank, batch.epoch, batch.number, int(number < warmup), *times]
                rows.writerow([*row, round(1e3 * batch.total, 4)])
