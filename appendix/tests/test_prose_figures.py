"""Figures inside of sentences: each is what the records say, or the sentence has to be changed."""

import json
import re
from collections.abc import Callable

import pytest
from measure import ROOT

THREE, FOUR, FIVE = "3_data_pipeline", "4_model_profiling", "5_whats_next"


def record(chapter: str, name: str) -> dict:
    return json.loads((ROOT / chapter / "results" / f"{name}.json").read_text())


def cells(chapter: str, name: str, row: str, title: str = "") -> list[float]:
    """The first number of each cell of a row, in the table below the line ``title``."""
    printed = record(chapter, name)["stdout"]
    printed = printed[printed.index(title) :]
    line = next(
        line for line in printed.splitlines() if re.match(rf"{re.escape(row)}\s{{2,}}", line)
    )
    found = (re.match(r"[\d,.]+", cell) for cell in re.split(r"\s{2,}", line.strip())[1:])
    return [float(number[0].replace(",", "")) for number in found if number]


def rmse(chapter: str) -> float:
    scores = record(chapter, "default")["summary"]["validation"]["masked autoencoder"]
    return scores["rmse_surface_temperature"]


def loss(chapter: str, epoch: int) -> float:
    """Of the validation, in the default run."""
    found = re.findall(r"val_loss ([\d.]+)", record(chapter, "default")["stdout"])
    return float(found[epoch - 1])


def ladder(row: str) -> float:
    """How many times a batch of chapter 2's default waits as long."""
    first, mine = (cells(THREE, "ladder_30ms", name)[0] for name in ("dask threads", row))
    return first / mine


def shares(row: str, of: str, title: str) -> list[int]:
    """Per cent of another row, for each delay."""
    pairs = zip(cells(THREE, "peers", row, title), cells(THREE, "peers", of, title), strict=True)
    return [round(100 * mine / other) for mine, other in pairs]


def shuffle(row: str, column: int) -> float:
    """As a share of the random order's."""
    ours, random = (cells(THREE, "shuffle_quality", name)[column] for name in (row, "random"))
    return ours / random


PEERS, LEAN = ("models_small", "models_tiny"), "this chapter, lean, compiled"
VIT = "ViTMAE (sdpa), compiled"
OTHERS = ("this chapter, lean", "this chapter, compiled", "this chapter")
AFTER, EPOCH = "samples/s after the first batch", "samples/s of a cold epoch"


def span(values: list[int]) -> tuple[int, int]:
    """The smallest and the largest."""
    return min(values), max(values)


CLAIMS: list[tuple[str, str, Callable[[], bool]]] = [
    (
        THREE,
        "about a hundred times as fast as chapter 2's default does, and six hundred times",
        lambda: (
            90 < ladder("packed, 8 ahead, 128 requests") < 110
            and 600 < ladder("packed, cache on disk") < 680
        ),
    ),
    (
        THREE,
        "Its loss is nearly three times as high",
        lambda: 2.6 < shuffle("1 stream, buffer of 1", 3) < 3,
    ),
    (
        THREE,
        "are close to random, and take a fifth of the requests",
        lambda: (
            0.17 < shuffle("4 streams, buffer of 4", 0) < 0.23
            and shuffle("4 streams, buffer of 4", 3) < 1.05
        ),
    ),
    (
        THREE,
        "delivers at least 86 % of what raw GETs of its objects do",
        lambda: min(shares("FastDataset", "raw GETs", AFTER)) == 86,
    ),
    (
        THREE,
        "with 71 to 82 % of the raw GETs of its objects",
        lambda: span(shares("ChunkStream", "raw GETs of months", EPOCH)) == (71, 82),
    ),
    (
        FOUR,
        "has 1.20 times at the first size, 1.15 times at the second",
        lambda: [cells(FOUR, name, LEAN)[2] for name in PEERS] == [1.20, 1.15],
    ),
    (
        FOUR,
        "At the first size ViTMAE compiled is as fast as ours compiled, at the second it is faster",
        lambda: (
            abs(cells(FOUR, PEERS[0], VIT)[2] / cells(FOUR, PEERS[0], OTHERS[1])[2] - 1) < 0.02
            and cells(FOUR, PEERS[1], VIT)[2] > 1.05 * cells(FOUR, PEERS[1], OTHERS[1])[2]
        ),
    ),
    (
        FOUR,
        "an epoch later a loss may differ by a tenth (epoch 2 below and in chapter 3)",
        lambda: 0.05 < abs(loss(FOUR, 2) / loss(THREE, 2) - 1) < 0.15,
    ),
    (
        FOUR,
        "Compiled it is the fastest of ours there",
        lambda: all(
            cells(FOUR, name, LEAN)[2] > max(cells(FOUR, name, row)[2] for row in OTHERS)
            for name in PEERS
        ),
    ),
    (
        FOUR,
        "the scores at the end of both default runs by less than 1 %",
        lambda: abs(rmse(FOUR) / rmse(THREE) - 1) < 0.01,
    ),
    (
        FIVE,
        "The constant rate is ahead",
        lambda: "% better than cosine" in record(FIVE, "schedule")["stdout"],
    ),
    (
        FIVE,
        "an epoch of the default config, 156 steps",
        lambda: record(FIVE, "default")["summary"]["step"] == 4 * 156,
    ),
]


@pytest.mark.parametrize(("chapter", "phrase", "holds"), CLAIMS, ids=[one[1] for one in CLAIMS])
def test_figures_in_sentences(chapter, phrase, holds):
    text = " ".join((ROOT / chapter / "README.md").read_text().split())
    assert phrase in text
    assert holds(), phrase
