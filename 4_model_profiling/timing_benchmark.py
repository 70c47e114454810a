"""Where does the time of a training step go: data, transfer, forward, backward, the rest?

uv run python timing_benchmark.py                      this chapter's model and data
uv run python timing_benchmark.py --steps 200 --precision bf16-mixed --data.batch_size 64
uv run python timing_benchmark.py -c mine.yaml --model-class mine.MyModule --data-class mine.MyData
"""

import os
from pathlib import Path

import pandas as pd
import yaml
from instruments import Training, make_parser, new_folder
from matplotlib.figure import Figure

from src.run.errors import UserError, one_line_errors
from src.run.step_timer import WARMUP, StepTimer

# Okabe and Ito's colours, for colour-blind readers too.
COLORS = {
    "data": "#E69F00",
    "transfer": "#F0E442",
    "forward": "#0072B2",
    "backward": "#56B4E9",
    "clipping": "#CC79A7",
    "optimizer": "#009E73",
    "other": "#999999",
}
# From here on, loading is the first thing to mend (README).
LARGE_DATA_SHARE = 0.3
ADVICE = {
    "data": "back to chapter 3, and its ceiling.py",
    "transfer": "pin_memory, fewer and smaller tensors",
    "forward": "look for Python loops (profiler.py --profilers advanced); torch.compile",
    "backward": "torch.compile, another architecture; profiler.py shows the operators",
    "clipping": "fewer and larger weight tensors are faster",
    "optimizer": "--optimizer.fused true",
    "other": "less logging, fewer callbacks; profiler.py shows the functions",
}
# One forward pass in ten that takes so many times the median is not the model's doing.
BUSY = 1.5


def main() -> None:
    """Read the options, train, write and print."""
    parser = make_parser(__doc__)
    parser.add_argument(
        "--epochs", type=int, default=2, help="passes over the training samples"
    )
    parser.add_argument(
        "--steps", type=int, default=-1, help="so many instead; -1: whole epochs"
    )
    parser.add_argument(
        "--save-dir", help="new folder; by default results/benchmark/TIMESTAMP"
    )
    options, overrides = parser.parse_known_args()
    folder = new_folder(options.save_dir, "benchmark")

    # As many epochs as the steps need: each has a step at least.
    epochs = max(options.epochs, options.steps)
    words = [f"--trainer.max_epochs={epochs}", *overrides]
    training = Training(options, words, max_steps=options.steps)
    timer = StepTimer(training.device.type)
    training.fit(timer)
    steps = milliseconds(timer)
    if len(steps) <= WARMUP:
        raise UserError(
            f"{len(steps)} batches are too few: {WARMUP} of them do not count"
        )
    if not training.trainer.is_global_zero:
        return

    table = summarise(steps.iloc[WARMUP:])
    about = f"{training.describe()}; {len(steps) - WARMUP} steps"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "benchmark_config.yaml").write_text(training.settings)
    steps.round(3).to_csv(folder / "timing_results.csv")
    summary = {"measured": about, "milliseconds": table.round(3).T.to_dict()}
    text = yaml.safe_dump(summary, sort_keys=False)
    (folder / "timing_summary.yaml").write_text(text)
    draw(steps.reset_index(drop=True), folder)

    print(f"{about}\nmilliseconds")
    percent = {"share": "{:.1%}".format}
    print(table.to_string(formatters=percent, float_format="{:.2f}".format))
    print(advice(table, training.device.type, training.precision))
    print(f"look at {os.path.relpath(folder)}: summary, results, config, picture")


def milliseconds(timer: StepTimer) -> pd.DataFrame:
    """A row for each step, with the parts and the total; the index is the epoch."""
    rows = pd.DataFrame(timer.seconds(), columns=["epoch", *COLORS, "total"])
    return 1e3 * rows.set_index("epoch")[[*COLORS, "total"]]


def summarise(steps: pd.DataFrame) -> pd.DataFrame:
    """A row for each part: median, mean, 90th percentile, and its share of all the time."""
    table = {
        "median": steps.median(),
        "mean": steps.mean(),
        "p90": steps.quantile(0.9),
        "share": steps.sum() / steps["total"].sum(),
    }
    return pd.DataFrame(table)


def advice(table: pd.DataFrame, device: str, precision: str) -> str:
    """What to look at first."""
    warning = ""
    # Not the total: a step that waits for its data is the loader's doing.
    forward = table.loc["forward"]
    if forward["p90"] > BUSY * forward["median"]:
        warning = (
            "one forward pass in ten is much slower: is something else running here, or do batches "
            "differ in size? measure again\n"
        )
    share = table["share"].drop("total")
    largest = share.idxmax()
    if share["data"] > LARGE_DATA_SHARE:
        largest = "data"
    text = ADVICE[largest]
    in_float32 = largest in ("forward", "backward") and precision == "32-true"
    # A processor may only emulate bfloat16; then it makes a step slower.
    if in_float32 and device != "cpu":
        text += "; then --precision bf16-mixed"
    return f"{warning}begin with {largest}, {share[largest]:.0%} of the time: {text}"


def draw(steps: pd.DataFrame, folder: Path) -> None:
    """A picture of the parts of each step."""
    figure = Figure(figsize=(9, 4))
    axis = figure.subplots()
    parts = steps[list(COLORS)].tail(200)
    parts.plot.area(color=COLORS, linewidth=0, ax=axis)
    axis.set(title="Parts of the last 200 steps", xlabel="step", ylabel="milliseconds")
    # A slow step, the first one as a rule, must not press all others flat.
    axis.set_ylim(0, 3 * steps["total"].median())
    save(figure, folder / "batch_time_breakdown.png")


def save(figure: Figure, path: Path) -> None:
    """Write a picture, with what stands beside its axes."""
    figure.savefig(path, dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    with one_line_errors():
        main()
