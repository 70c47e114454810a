"""Where does the time of a training step go: data, transfer, forward, backward, the rest?

uv run python timing_benchmark.py                      this chapter's model and data
uv run python timing_benchmark.py --epochs 1 --precision bf16-mixed --data.batch_size 64
uv run python timing_benchmark.py -c mine.yaml --model-class mine.MyModule --data-class mine.MyData
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib

matplotlib.use("Agg")  # no screen needed
import matplotlib.pyplot as plt
import pandas as pd
import yaml
from instruments import build, describe, fit, new_folder, options

from src.errors import UserError, one_line_errors
from src.step_timer import WARMUP, StepTimer

# Okabe and Ito's colours, which also those tell apart who see fewer of them.
COLORS = {
    "data": "#E69F00",
    "transfer": "#F0E442",
    "forward": "#0072B2",
    "backward": "#56B4E9",
    "other": "#999999",
}
ADVICE = {
    "data": "above 30 % of a step: back to chapter 3, and its ceiling.py",
    "transfer": "pin_memory, fewer and smaller tensors",
    "forward": "precision, torch.compile, or another architecture; profiler.py shows the operators",
    "backward": "precision, torch.compile, micro_batches; with several ranks also their waiting",
    "other": "fused AdamW, less logging, callbacks; profiler.py shows the functions",
}


def main() -> None:
    """Read the options, train, write and print."""
    parser = options(__doc__)
    parser.add_argument(
        "--epochs", type=int, default=2, help="passes over the training samples"
    )
    parser.add_argument(
        "--save-dir", help="new folder; by default results/benchmark/TIMESTAMP"
    )
    chosen, overrides = parser.parse_known_args()
    folder = new_folder(chosen.save_dir, "benchmark")
    with TemporaryDirectory() as run_folder:
        cli = build(
            chosen,
            [*overrides, f"--trainer.max_epochs={chosen.epochs}"],
            run_folder,
            [],
        )
        timer = StepTimer(cli.trainer.strategy.root_device.type)
        fit(cli, timer)
    steps = 1e3 * pd.DataFrame(timer.seconds()).set_index("epoch")[[*COLORS, "total"]]
    if len(steps) <= WARMUP:
        raise UserError(
            f"{len(steps)} batches are too few: {WARMUP} of them do not count"
        )
    if not cli.trainer.is_global_zero:
        return
    counted = steps.iloc[WARMUP:]
    table = pd.DataFrame({"median": counted.median(), "mean": counted.mean()})
    table["p90"], table["share"] = (
        counted.quantile(0.9),
        counted.sum() / counted["total"].sum(),
    )
    about = describe(cli.trainer, chosen.precision)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "benchmark_config.yaml").write_text(cli.parser.dump(cli.config))
    steps.round(3).to_csv(folder / "timing_results.csv")
    summary = {
        "device": about,
        "batches": len(counted),
        "ms": table.round(3).T.to_dict(),
    }
    (folder / "timing_summary.yaml").write_text(
        yaml.safe_dump(summary, sort_keys=False)
    )
    draw(steps.reset_index(drop=True), folder)
    print(f"{about}; {len(counted)} batches\nmilliseconds")
    print(
        table.to_string(
            formatters={"share": "{:.1%}".format}, float_format="{:.2f}".format
        )
    )
    largest = (
        "data"
        if table["share"]["data"] > 0.3
        else table["share"].drop("total").idxmax()
    )
    print(f"begin with {largest}: {ADVICE[largest]}")
    print(
        f"look at {os.path.relpath(folder)}: summary, results, config, three pictures"
    )


def draw(steps: pd.DataFrame, folder: Path) -> None:
    """Three pictures: the parts of each batch, the whole of each batch, the shares."""
    parts, total = steps[list(COLORS)], steps["total"]
    # A slow batch, the first one as a rule, must not press all others flat.
    labels = {
        "xlabel": "batch",
        "ylabel": "milliseconds",
        "ylim": (0, 3 * total.median()),
    }
    axes = parts.tail(200).plot.area(color=COLORS, linewidth=0, figsize=(9, 4))
    axes.set(title="Parts of each batch", **labels)
    save(folder / "batch_time_breakdown.png")

    axes = total.plot(color="black", linewidth=0.8, figsize=(9, 3), label="each batch")
    axes.axhline(
        total.median(), color="#D55E00", label=f"median {total.median():.1f} ms"
    )
    axes.set(title="Each batch", **labels)
    axes.legend()
    save(folder / "total_batch_time.png")

    sums = parts.iloc[WARMUP:].sum()
    wedges, *_ = plt.pie(
        sums, colors=[*COLORS.values()], startangle=90, counterclock=False
    )
    names = [f"{name} {share:.0%}" for name, share in (sums / sums.sum()).items()]
    plt.legend(wedges, names, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    save(folder / "time_distribution_pie.png")


def save(path: Path) -> None:
    """Write the current picture."""
    plt.savefig(path, dpi=120, bbox_inches="tight")
    plt.close()


if __name__ == "__main__":
    with one_line_errors():
        main()
