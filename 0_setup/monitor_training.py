"""Estimate the energy and the emissions of any training command, on this machine.

  uv run --group emissions python monitor_training.py "python pytorch_train.py" --country NLD

Leaves log.txt (all that the command printed) and emissions.csv in output/emissions.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from codecarbon import OfflineEmissionsTracker


def main() -> int:
    """Run the command and report. Returns the command's exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", help="in quotes, as for a shell")
    parser.add_argument(
        "--country", default="NLD", help="ISO code: how clean is the electricity?"
    )
    settings = parser.parse_args()
    folder = (
        Path(__file__).parent / "output" / "emissions" / time.strftime("%Y%m%d-%H%M%S")
    )
    folder.mkdir(parents=True)
    # Offline: the carbon intensity of a country comes from a table, not from a web service.
    tracker = OfflineEmissionsTracker(
        country_iso_code=settings.country, output_dir=str(folder), log_level="error"
    )
    # Ctrl-C reaches the command as well, which saves and ends; then this script reports. Not
    # SIG_IGN, which the command would inherit.
    signal.signal(signal.SIGINT, lambda *_: None)
    shell = (
        f"set -o pipefail; ({settings.command}) 2>&1 "
        f"| tee -i {shlex.quote(str(folder / 'log.txt'))}"
    )
    with tracker:
        code = subprocess.call(["bash", "-c", shell])
    result = tracker.final_emissions_data
    # In Wh and g: a run of a minute takes thousandths of the usual kWh and kg.
    energy = {
        name: 1000 * getattr(result, f"{name}_energy") for name in ("cpu", "gpu", "ram")
    }
    parts = ", ".join(f"{name} {value:.3f} Wh" for name, value in energy.items())
    print(
        f"{1000 * result.emissions:.3f} g CO2 in {result.duration:.0f} s: {parts}; "
        f"look at {os.path.relpath(folder)}"
    )
    return code


if __name__ == "__main__":
    sys.exit(main())
