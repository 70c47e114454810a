"""Kill a training at every step, and see whether it comes back to the same curve, to the bit.

  uv run python kill_campaign.py --short           a few of each kind, in about five minutes
  uv run python kill_campaign.py                   everything, in about an hour
  uv run python kill_campaign.py --only latency    one fault alone

Each case begins a tiny training on noise, ends it with SIGKILL (or a full disk), and goes on twice:
from the disk, and from the cloud alone, with the local folder removed. The S3 server is a real one,
with a proxy in front of it that makes the faults.
"""

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from campaign_runs import BITS, NETWORK, NOTHING_YET, Campaign, Case, server
from tqdm import tqdm

STEPS = 12  # of the tiny training: four in each of three epochs


def cases(short: bool) -> list[Case]:
    """All combinations; in short form a few of each kind."""
    steps = (5, 8) if short else range(STEPS)
    pairs = [(1, 0), (1, 2), (2, 0), (2, 2)]
    if short:
        found = [Case("step", 5, 1, 0), Case("step", 8, 2, 2)]
    else:
        found = [Case("step", step, *pair) for step in steps for pair in pairs]
    few, later = ((6,), (6,)) if short else ((1, 6, 11), (3, 6, 11))  # later: two copies are there
    found += [
        Case(moment, step) for moment in ("validation", "save", "upload", "full") for step in few
    ]
    found += [Case("step", step, fault=fault) for fault in [*NETWORK, "tmpdir"] for step in few]
    return found + [Case("step", step, fault=fault) for fault in BITS for step in later]


def came_back(case: Case) -> bool:
    """Whether a case is on the reference curve, from the disk and from the cloud.

    Before the second step there may be nothing in the cloud yet; later there has to be.
    """
    cloud = case.results.get("cloud")
    is_there = cloud == "same" or (cloud == NOTHING_YET and case.step <= 1)
    return case.results.get("disk") == "same" and is_there


def table(done: list[Case]) -> tuple[str, bool]:
    """A line for each kind of case, and whether all of them came back."""
    kinds: dict[str, list[Case]] = {}
    for case in done:
        ranks = f"ranks: {case.ranks}, workers: {case.workers}" if not case.fault else ""
        kinds.setdefault(case.fault or f"{case.moment}, {ranks}", []).append(case)
    lines = [f"{'':<32}{'cases':>7}{'from disk':>11}{'from cloud':>12}  steps lost: disk, cloud"]
    for kind, members in kinds.items():
        disk = [c.results.get("disk", "") == "same" for c in members]
        known = [c for c in members if c.results.get("cloud") not in (None, NOTHING_YET)]
        cloud = [c.results["cloud"] == "same" for c in known]
        lost = [list(map(int, c.results["lost"].split())) for c in members if "lost" in c.results]
        most = [max((pair[at] for pair in lost), default=0) for at in (0, 1)]
        counts = f"{sum(disk)}/{len(disk)}", f"{sum(cloud)}/{len(cloud)}"
        lines.append(
            f"{kind:<32}{len(members):>7}{counts[0]:>11}{counts[1]:>12}"
            f"  at most {most[0]}, {most[1]}"
        )
    early = [c for c in done if c.results.get("cloud") == NOTHING_YET]
    if early:
        names = ", ".join(sorted({f"{c.moment} {c.step}" for c in early}))
        lines.append(f"killed before the first upload, so nothing is in the cloud: {names}")
    wrong = [(c.name, c.results) for c in done if not came_back(c)]
    lines += [f"NOT the reference curve: {name} {results}" for name, results in wrong]
    return "\n".join(lines), not wrong


def main() -> int:
    """Run the cases two at a time. Returns 1 if one of them left the reference curve."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--short", action="store_true", help="a few cases of each kind")
    parser.add_argument("--only", help="cases of this moment or fault, such as upload or 503")
    arguments = parser.parse_args()
    chosen = cases(arguments.short)
    if arguments.only:
        names = {case.moment for case in chosen} | {case.fault for case in chosen if case.fault}
        if arguments.only not in names:
            sys.exit(f"error: --only: {arguments.only} is unknown; allowed: {', '.join(names)}")
        fault = arguments.only not in {"step", "validation", "save", "upload", "full"}
        chosen = [c for c in chosen if arguments.only == (c.fault if fault else c.moment)]
    with tempfile.TemporaryDirectory(prefix="campaign-") as place, server(Path(place)) as endpoint:
        campaign = Campaign(Path(place) / "runs", endpoint)
        with ThreadPoolExecutor(2) as pool:
            bar = tqdm(total=len(chosen), unit="case", disable=not sys.stderr.isatty())
            done = []
            for case in pool.map(campaign.run, chosen):
                done.append(case)
                bar.update()
            bar.close()
    text, good = table(done)
    print(text)
    print("every run is on the reference curve, to the bit" if good else "NOT all runs came back")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
