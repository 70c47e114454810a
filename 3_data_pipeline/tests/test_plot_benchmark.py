"""Pictures of a log: what they show is what it says."""

import json
import sys

import plot_benchmark_runs as plots
import pytest
from matplotlib.figure import Figure
from src.errors import UserError
from utils import run_command


def run(name: str, repeat: int, speed: float, **settings) -> dict:
    return {
        "name": name,
        "repeat": repeat,
        "machine": {"processor": "this one", "date": str(repeat)},
        "configuration": settings,
        "waits": [0.3, 0.1],
        "steps": [0.1, 0.1],
        "samples_per_second": speed,
        "peak_memory_mb": 500.0,
    }


@pytest.fixture
def log(tmp_path):
    lines = [run("slow", n, 10.0 + n, num_workers=0, batch_size=8) for n in range(3)]
    lines += [run("fast", n, 100.0 + n, num_workers=2, batch_size=8) for n in range(3)]
    lines.append(run("broken", 0, 1.0) | {"error": "no such dataset"})
    place = tmp_path / "runs.jsonl"
    place.write_text("\n".join(map(json.dumps, lines)))
    return place


def test_pictures(log, tmp_path, capsys):
    plots.main(str(log), str(tmp_path / "images"), ("num_workers", "batch_size"))
    made = sorted(path.name for path in (tmp_path / "images").iterdir())
    assert made == ["runs-bars.png", "runs-heat_map.png", "runs-timeline.png"]
    assert all(path.stat().st_size > 5000 for path in (tmp_path / "images").iterdir())
    assert capsys.readouterr().out.count("look at ") == 3


def test_timeline_and_bars_show_the_numbers(log):
    runs = plots.runs_by_name(log)
    assert list(runs) == ["slow", "fast"]
    axes = Figure().subplots()
    plots.draw_timeline(axes, runs)
    widths = [patch.get_width() for patch in axes.patches]
    assert widths == pytest.approx([0.3, 0.1, 0.1, 0.1] * 2)
    assert [patch.get_x() for patch in axes.patches][:4] == pytest.approx([0, 0.3, 0.4, 0.5])
    axes = Figure().subplots()
    plots.draw_bars(axes, runs, "samples_per_second", "speed")
    assert [patch.get_width() for patch in axes.patches] == [11.0, 101.0]


def test_heat_map_of_settings_that_are_no_grid(log):
    runs = plots.runs_by_name(log)
    with pytest.raises(UserError, match="grid: prefetch_factor not set in slow"):
        plots.draw_heat_map(Figure().subplots(), runs, ("num_workers", "prefetch_factor"))
    runs["other"] = [run("other", 0, 1.0, num_workers=4, batch_size=2)]
    with pytest.raises(UserError, match="are no grid of 3 configurations"):
        plots.draw_heat_map(Figure().subplots(), runs, ("num_workers", "batch_size"))


def test_log_without_runs(tmp_path):
    with pytest.raises(UserError, match="has no successful run; the benchmark makes one"):
        plots.main(str(tmp_path / "nothing.jsonl"))


def test_command_line(log, tmp_path, monkeypatch, capsys):
    arguments = [f"--log={log}", f"--folder={tmp_path}", "--grid=[num_workers,batch_size]"]
    monkeypatch.setattr(sys, "argv", ["plot_benchmark_runs.py", *arguments])
    run_command(plots.main, plots.__doc__)
    assert capsys.readouterr().out.count("look at ") == 3
