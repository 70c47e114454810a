"""The report: medians and shares of what counts, and a verdict that names the cause."""

import csv

import pytest
import timing_report
from step_timer import PARTS, Batch


def batch(number: int = 0, **milliseconds: float) -> Batch:
    seconds = dict.fromkeys(PARTS, 0.0) | {k: v / 1e3 for k, v in milliseconds.items()}
    return Batch(0, number, seconds)


def test_warmup_does_not_count():
    batches = [batch(data=900, forward=900), *(batch(forward=3 + n, backward=6) for n in range(3))]
    found = timing_report.summarise([batches], warmup=1)
    assert found["batches"] == 3
    assert found["first_batch_ms"] == 1800
    assert found["total_ms"]["median"] == 10
    assert found["parts_ms"]["forward"]["median"] == 4
    assert found["parts_ms"]["backward"]["share"] == 0.6
    assert sum(part["share"] for part in found["parts_ms"].values()) == pytest.approx(1)
    assert any("first batch took 1800 ms" in line for line in found["verdict"])


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"data": 50, "forward": 30, "backward": 20}, "data above 40%: the step waits"),
        ({"data": 35, "forward": 40, "backward": 25}, "data above 30%: worth a look"),
        ({"data": 5, "forward": 60, "backward": 35}, "device computes; try the model's forward"),
        ({"forward": 40, "backward": 60}, "device computes; try the gradients"),
        ({"forward": 40, "optimizer": 60}, "optimizer above 25%: the optimiser: fused"),
        ({"forward": 60, "overhead": 40}, "overhead above 20%: what lies between"),
        ({"forward": 60, "transfer": 40}, "transfer above 10%: the copies"),
    ],
)
def test_verdict_names_the_cause(parts, said):
    lines = timing_report.summarise([[batch(**parts)] * 3], 0)["verdict"]
    largest = max(parts, key=parts.__getitem__)
    assert lines[0] == f"largest: {largest}, {parts[largest]}% of a step"
    assert said in "\n".join(lines)
    if "data" not in parts:
        assert "data above" not in "\n".join(lines)


def test_rank_that_the_others_wait_for():
    """The waiting itself is in backward, on all the other ranks."""
    fast, slow = batch(forward=10, backward=40), batch(data=20, forward=10, backward=20)
    found = timing_report.summarise([[fast] * 3, [slow] * 3, [fast] * 3], 0)
    assert found["slowest_rank"] == 1
    assert found["ranks_ms"] == [10, 30, 10]
    assert "last to reach backward: rank 1" in timing_report.report(found)


def test_table_has_a_row_for_each_batch_of_each_rank(tmp_path):
    ranks = [[batch(n, data=1 + n, forward=2) for n in range(3)] for _ in range(2)]
    timing_report.write_table(tmp_path / "x.csv", ranks, 1)
    with (tmp_path / "x.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["rank"] for row in rows] == ["0"] * 3 + ["1"] * 3
    assert [row["warmup"] for row in rows] == ["1", "0", "0"] * 2
    assert [float(row["total_ms"]) for row in rows] == [3, 4, 5] * 2
