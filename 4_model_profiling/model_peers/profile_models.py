"""What the steps of the compared models consist of: matrix products, attention, everything else.

  uv run --project model_peers python model_peers/profile_models.py
  uv run --project model_peers python model_peers/profile_models.py --size tiny

What multiplies the same matrices takes the same time in all of them. The last column is what the
reference's step would be faster by if everything else took no time: no change to it can gain more.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # the chapter: src, model_peers

from machine_speed import matrix_product
from model_peers.benchmark_models import Runner, make_runners, read_options
from src.errors import one_line_errors
from torch.profiler import ProfilerActivity, profile

PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "convolution")
ATTENTION = ("scaled_dot_product",)


def shares(runner: Runner, steps: int) -> dict[str, float]:
    """Milliseconds of a step, by kind of operator; on a GPU those of its kernels."""
    for _ in range(3):
        runner.step()
    kinds = [ProfilerActivity.CPU]
    if runner.images.device.type == "cuda":
        kinds.append(ProfilerActivity.CUDA)
    with profile(activities=kinds) as profiler:
        for _ in range(steps):
            runner.step()
    found = dict.fromkeys(("products", "attention", "else"), 0.0)
    for event in profiler.key_averages():
        own = event.self_device_time_total or event.self_cpu_time_total
        kind = "else"
        if any(name in event.key for name in ATTENTION):
            kind = "attention"
        elif any(name in event.key for name in PRODUCTS):
            kind = "products"
        found[kind] += own / 1e3 / steps
    return found


def main() -> int:
    """Profile, and print a table. Returns the exit code."""
    chosen = read_options(__doc__)
    runners = make_runners(chosen)
    speed = matrix_product(next(iter(runners.values())).images.device)
    print(f"matrix product {speed / 1e9:,.0f} GFLOP/s in float32")
    print(f"{'ms per step':<29}{'products':>10}{'attention':>11}{'else':>8}{'at most':>9}")
    for name, runner in runners.items():
        found = shares(runner, chosen.steps)
        most = sum(found.values()) / (found["products"] + found["attention"])
        print(
            f"{name:<29}{found['products']:>10.2f}{found['attention']:>11.2f}"
            f"{found['else']:>8.2f}{most:>8.2f}x"
        )
    return 0


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
