"""The ceiling: it measures what the reader does, and names what holds it back."""

import ceiling
import pytest

from tests.fast_stores import fast
from tests.fast_stores import url as url  # a fixture


@pytest.mark.parametrize("packed", [False, True])
def test_raw_requests_are_those_of_the_reader(url, packed, monkeypatch):
    """The ceiling fetches the objects that the reader fetches, and decodes without the store."""
    dataset = fast(url, packed=packed, batches_ahead=0)
    dataset[0]
    batch = list(range(0, 40, 3))
    before = int(dataset.counts[0, 0])
    dataset.__getitems__(batch)
    assert len(ceiling.objects_of_batch(dataset, batch)) == int(dataset.counts[0, 0]) - before
    speed, megabytes = ceiling.raw_gets(dataset, [batch], 4, 0.05)
    assert min(speed, megabytes) > 0
    monkeypatch.setattr(type(dataset), "open_source", None)
    assert min(ceiling.decoding(dataset, batch, 0.05)) > 0
    assert min(ceiling.copying(dataset, 4, 0.05)) > 0


@pytest.mark.parametrize(
    ("speeds", "verdict"),
    [
        ({"model": 100, "store": 500, "decode": 900, "copy": 9e5, "loader": 450}, "model"),
        ({"model": 900, "store": 500, "decode": 950, "copy": 9e5, "loader": 450}, "store"),
        ({"model": 900, "store": 800, "decode": 300, "copy": 9e5, "loader": 290}, "decode"),
        ({"model": 900, "store": 800, "decode": 990, "copy": 9e5, "loader": 90}, "loader"),
    ],
)
def test_verdict(capsys, speeds, verdict):
    ceiling.report([(part, "", speed, 1.0) for part, speed in speeds.items()], 1000)
    assert f"bottleneck: {verdict}; " in capsys.readouterr().out
