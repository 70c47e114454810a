"""Take the picture of Dask's dashboard under load that chapter 3 shows.

  uv run --group dashboard python appendix/dashboard.py

It starts the chapter's dask_cluster.py, lets it read for a while, and looks at the dashboard with a
headless Chromium, which has to be installed. The picture and its record, which says what it was
taken of and whether the code has changed since, go to 3_data_pipeline/results.
"""

import argparse
import importlib.util
import json
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

from browser import Browser, chromium
from measure import ROOT, hardware, source_digest, versions
from terminal import Background

CHAPTER = ROOT / "3_data_pipeline"
COMMAND = "python dask_cluster.py --keep true"
LOAD = 15.0  # seconds; the task stream shows that much


def take(picture: Path) -> str:
    """Write the picture; returns what the command printed."""
    with tempfile.TemporaryDirectory(prefix="dashboard-") as place:
        log = Path(place) / "log.txt"
        running = Background(COMMAND.replace("python", sys.executable, 1), CHAPTER, log)
        try:
            if not running.wait_for("samples/s"):
                raise RuntimeError(f"{COMMAND} failed:\n{log.read_text()}")
            address = re.search(r"http://127\.0\.0\.1:\d+/status", log.read_text())
            assert address, log.read_text()
            with Browser(chromium() or "") as browser:
                browser.size(1400, 800)
                browser.open(address[0])
                browser.wait_for("window.Bokeh && Bokeh.documents.length")
                time.sleep(LOAD)  # not to wait for something: this is the time in the picture
                browser.picture(picture)
        finally:
            running.stop()
        return log.read_text()


def main() -> int:
    """Take the picture and write its record."""
    raw = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=raw).parse_args()
    if not importlib.util.find_spec("bokeh"):
        sys.exit("error: the dashboard needs bokeh: uv run --group dashboard python ...")
    if not chromium():
        sys.exit("error: there is no Chromium on PATH (apt install chromium, brew install ...)")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also in what is started here
    start = time.perf_counter()
    printed = take(CHAPTER / "results" / "dashboard.png")
    record = {
        "command": COMMAND,
        "made_by": "appendix/dashboard.py",
        "hardware": hardware(),
        "versions": versions(),
        "reached": source_digest(CHAPTER, COMMAND),
        "seconds": round(time.perf_counter() - start, 1),
        "stdout": printed,
    }
    (CHAPTER / "results" / "dashboard.json").write_text(json.dumps(record, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
