"""The summary of a trace: what is counted is known, because the trace is made up."""

import gzip
import json
import sys

import pytest
from src.errors import UserError
from trace_summary import main, read_trace, self_times, summarise_trace


def span(name: str, start: float, length: float, category: str = "cpu_op", tid: int = 1) -> dict:
    pid = 0 if category in ("kernel", "gpu_memcpy", "gpu_memset") else 100
    place = {"pid": pid, "tid": tid}
    return {"ph": "X", "name": name, "cat": category, "ts": start, "dur": length, **place}


def write(path, events) -> None:
    path.write_text(json.dumps({"traceEvents": [{"ph": "M", "name": "x"}, *events]}))


@pytest.fixture
def gpu(tmp_path):
    """Two kernels with a gap between them, and a copy half beside the second one."""
    place = tmp_path / "gpu.pt.trace.json"
    events = [
        span("aten::mm", 0, 10),
        span("aten::item", 1000, 3000),
        span("training_step", 0, 9000, "user_annotation"),
        span("gemm", 0, 1000, "kernel", 7),
        span("gemm", 4000, 2000, "kernel", 7),
        span("Memcpy HtoD", 5000, 2000, "gpu_memcpy", 8),
    ]
    write(place, events)
    return place


def test_gpu(gpu):
    text = summarise_trace(gpu, gaps=1)
    assert "GPU: busy 57% of 7.0 ms" in text  # 1 + 3 of 7 ms
    assert "3.00   60.0%       2  gemm" in text
    assert "3.00 ms  in aten::item" in text  # from 1 to 4 ms
    assert "copies: 2.00 ms, 50% of it beside kernels" in text


def test_processor_without_a_gpu(tmp_path):
    """Two threads: the gradients are computed in one of their own."""
    place = tmp_path / "cpu.pt.trace.json"
    events = [
        span("aten::linear", 0, 100),
        span("aten::addmm", 10, 70),
        span("aten::copy_", 20, 10),
        span("aten::mm", 150, 50, tid=2),
        span("zero_grad", 90, 70, "user_annotation"),
    ]
    write(place, events)
    times = self_times(event for event in read_trace(place) if event.category == "cpu_op")
    assert times == {
        "aten::linear": (30, 1),
        "aten::addmm": (60, 1),
        "aten::copy_": (10, 1),
        "aten::mm": (50, 1),
    }
    text = summarise_trace(place)
    assert "operators: busy 75% of 0.2 ms" in text
    assert "0.05 ms  in zero_grad" in text
    assert "copies" not in text


def test_compressed(gpu, tmp_path):
    packed = tmp_path / "x.pt.trace.json.gz"
    packed.write_bytes(gzip.compress(gpu.read_bytes()))
    assert summarise_trace(packed) == summarise_trace(gpu)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense", "is no trace of PyTorch's profiler"),
        ("{}", "is no trace"),
        ('{"traceEvents": [{"ph": "X"}]}', "is no trace"),
        ('{"traceEvents": []}', "has no operator in it"),
    ],
)
def test_no_trace(tmp_path, monkeypatch, content, message):
    place = tmp_path / "x.json"
    place.write_text(content)
    monkeypatch.setattr(sys, "argv", ["trace_summary.py", str(place)])
    with pytest.raises(UserError, match=message) as caught:
        main()
    assert "\n" not in str(caught.value)


def test_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["trace_summary.py", str(tmp_path / "nowhere")])
    with pytest.raises(UserError, match="there is no file"):
        main()
