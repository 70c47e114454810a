"""Draw the whole way in one picture: what each chapter adds, its default run, and its score.

uv run python appendix/way.py            writes appendix/way.svg
uv run python appendix/way.py --check    is the committed one that of these measurements?
"""

import argparse
import io
import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "appendix" / "way.svg"
# Chapter, record of its default run, title, what it adds to the one before.
CHAPTERS = [
    ("0_setup", "default", "a baseline", "model, seeds,\nexact resume"),
    ("1_multi_gpu", "one", "many GPUs", "Lightning, DDP,\nthe same curve"),
    ("2_cloud_data", "default", "object storage", "Zarr on S3,\nread lazily"),
    ("3_data_pipeline", "default", "a fast reader", "requests ahead,\nno waiting"),
    ("4_model_profiling", "default", "a fast step", "timed, profiled,\ncompiled"),
    ("5_whats_next", "default", "left alone", "uploads, signals,\nprecision"),
]
BLUE, GREEN, GREY = "#1f5a93", "#2a7d4f", "#6b6b6b"


def draw() -> str:
    """The picture as SVG, the same text for the same measurements."""
    # Text stays text, and nothing is drawn at random: the same picture is the same file.
    with plt.rc_context({"svg.hashsalt": "way", "svg.fonttype": "none", "font.size": 9}):
        figure, axes = plt.subplots(figsize=(11, 2.6))
        axes.set(xlim=(-0.55, 5.55), ylim=(-0.75, 1.15))
        axes.axis("off")
        for place, (chapter, name, title, adds) in enumerate(CHAPTERS):
            record = json.loads((ROOT / chapter / "results" / f"{name}.json").read_text())
            score = record["summary"]["validation"]["masked autoencoder"]
            box = {"boxstyle": "round,pad=0.6", "facecolor": "#eef4fa", "edgecolor": BLUE}
            axes.text(place, 0.55, f"{title}\n", ha="center", va="center", weight="bold", bbox=box)
            axes.text(place, 0.42, f"chapter {chapter[0]}", ha="center", va="center", color=GREY)
            axes.text(place, -0.05, adds, ha="center", va="center", linespacing=1.5)
            found = f"{score['rmse_surface_temperature']:.2f} K in {record['seconds']:.0f} s"
            axes.text(place, -0.5, found, ha="center", va="center", color=GREEN)
            if place:
                arrow = {"arrowstyle": "->", "color": BLUE}
                ends = (place - 0.56, 0.5), (place - 0.44, 0.5)
                axes.annotate("", xy=ends[1], xytext=ends[0], arrowprops=arrow)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None}, bbox_inches="tight")
        plt.close(figure)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def main() -> int:
    """Write the picture, or compare it. Returns 1 if it is another one."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    if not parser.parse_args().check:
        PICTURE.write_text(draw())
        print(f"look at {PICTURE}")
        return 0
    if not PICTURE.exists() or PICTURE.read_text() != draw():
        print("appendix/way.svg is not that of these measurements; run: appendix/way.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
