"""The tables of the benchmark, from its log: how fast each peer is, and what it needs first."""

from typing import Any

from peers.catalogue import OURS, RAW, RAW_MONTHS, STREAM, Peer
from peers.steps import Benchmark, Job
from utils import spread

RATES = {
    "rate": "samples/s after the first batch",
    "epoch_rate": "samples/s of a cold epoch, from opening the data to the last batch",
}
VERSIONS = ("litdata", "mosaicml-streaming", "xbatcher", "xarray", "dask", "zarr", "tensorstore")
COSTS = {
    "seconds_to_first_batch": "seconds to the first batch, from opening the data",
    "peak_memory_mb": "MB of memory, all processes together",
}
REFERENCES = (OURS, STREAM, RAW, RAW_MONTHS)
Summary = dict[tuple[str, str], dict[str, Any]]  # by peer and delay


def summarise(runs: list[Job]) -> Summary:
    """Medians of the runs without an error; the last error where there are no others."""
    found: Summary = {}
    for place in dict.fromkeys((run["peer"], run["delay"]) for run in runs):
        own = [run for run in runs if (run["peer"], run["delay"]) == place]
        good = [run for run in own if "error" not in run]
        if not good:
            found[place] = {"error": own[-1]["error"]}
            continue
        found[place] = {
            "epoch_rate": spread([run["epoch_rate"] for run in good]),
            # A reader may be cut off in its second batch.
            "rate": spread([run["rate"] if "rate" in run else run["epoch_rate"] for run in good]),
            "seconds_to_first_batch": spread([run["seconds_to_first_batch"] for run in good]),
            "peak_memory_mb": spread([run["peak_memory_mb"] for run in good]),
            "cut_off": any(run["cut_off"] for run in good),
            "runs": len(good),
        }
    return found


def number(value: float) -> str:
    """Three digits are enough to compare."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def values(summary: Summary, peers: list[str], delays: list[str], key: str) -> list[list[str]]:
    """A row for each peer: median, smallest and largest value; a star where runs were cut off."""
    rows = []
    for name in peers:
        row = [name]
        for delay in delays:
            found = summary.get((name, delay), {"error": ""})
            if "error" in found:
                row.append("failed" if found["error"] else "-")
                continue
            middle, low, high = (number(found[key][end]) for end in ("median", "min", "max"))
            star = "*" if found["cut_off"] else ""
            row.append(f"{middle}{star}" + (f" ({low}-{high})" if found["runs"] > 1 else ""))
        rows.append(row)
    return rows


def ratios(summary: Summary, peers: list[str], delays: list[str], key: str) -> list[list[str]]:
    """A row for each peer: its median over those of the references."""

    def median(name: str, delay: str) -> float | None:
        return summary.get((name, delay), {}).get(key, {}).get("median")

    def ratio(name: str, other: str, delay: str) -> str:
        own, theirs = median(name, delay), median(other, delay)
        return number(own / theirs) if own is not None and theirs else "-"

    return [
        [name, *(" / ".join(ratio(name, o, d) for o in REFERENCES) for d in delays)]
        for name in peers
    ]


def needs(benchmark: Benchmark, peers: dict[str, Peer]) -> list[list[str]]:
    """A row for each peer: what it reads, how long its copy takes, how large that is."""
    rows = []
    for name, peer in peers.items():
        copy, check = benchmark.copy_of(peer), benchmark.check_of(name, peer)
        row = [name, peer.reads]
        if "error" in copy:
            row += ["failed", "", ""]
        elif copy:
            row += [number(copy["seconds"]), number(copy["megabytes"]), str(copy["objects"])]
        else:
            row += ["0" if not peer.copy else "-", "", ""]
        checked = "failed" if "error" in check else "-"
        if check and "error" not in check:
            checked = f"{check['checked']} of {check['all']}"
        rows.append([*row, checked])
    return rows


def lay_out(titles: list[str], rows: list[list[str]]) -> str:
    """Columns side by side, the first one to the left."""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    lines = []
    for row in (titles, *rows):
        first, *others = row
        cells = [text.rjust(width + 2) for text, width in zip(others, widths[1:], strict=True)]
        lines.append((first.ljust(widths[0]) + "".join(cells)).rstrip())
    return "\n".join(lines)


def report(benchmark: Benchmark, peers: dict[str, Peer], delays: list[str], limit: float) -> str:
    """All tables, and what one has to know to read them."""
    summary = summarise(benchmark.runs(peers, delays, limit))
    about, names = benchmark.about, list(peers)
    parts = [
        f"{about['processor']}, {about['cores']} cores, Python {about['python']}, "
        + ", ".join(f"{name} {about[name]}" for name in VERSIONS if about.get(name)),
    ]
    titles = ["", *delays]
    for key, title in RATES.items():
        parts.append(f"{title}\n" + lay_out(titles, values(summary, names, delays, key)))
        heading = f"ratio to {' / '.join(REFERENCES)}: {title}"
        parts.append(f"{heading}\n" + lay_out(titles, ratios(summary, names, delays, key)))
    for key, title in COSTS.items():
        parts.append(f"{title}\n" + lay_out(titles, values(summary, names, delays, key)))
    titles = ["needs first", "reads", "seconds to copy", "MB", "objects", "same samples"]
    parts.append(lay_out(titles, needs(benchmark, peers)))
    parts.append(notes(summary, limit))
    return "\n\n".join(parts)


def notes(summary: Summary, limit: float) -> str:
    """How to read the tables, and what went wrong."""
    lines = [
        "Medians (smallest-largest) of runs in turns, each in a process of its own, caches cold.",
        "same samples: so many were read in the check, all of them equal to FastDataset's.",
    ]
    if any(found.get("cut_off") for found in summary.values()):
        lines.append(f"* cut off {limit:g} s after the first batch: the rate of what had come.")
    for (name, delay), found in summary.items():
        if "error" in found:
            lines.append(f"{name}, {delay}: {found['error']}")
    return "\n".join(lines)
