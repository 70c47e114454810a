"""Run this chapter's S3 server in the foreground, for other programs to use.

  uv run python s3_server.py              until Ctrl-C
  uv run python s3_server.py --folder F   another one, with data of its own, beside it

The train scripts need no such thing: they start the server themselves, or use the one that runs.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

from src.data.s3_server import BUCKET, FOLDER, ServerError, connect


def main() -> int:
    """Start the server, say how to use it, wait. Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where its data lie")
    folder = parser.parse_args().folder.resolve()
    try:
        variables = connect(folder)
    except ServerError as error:
        sys.exit(f"error: {error}")
    stop = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)  # from here on they wait for sigwait
    print(f"S3 server  {variables['AWS_ENDPOINT_URL']}, bucket {BUCKET}")
    print(f"data       {os.path.relpath(folder / 'data')}")
    print("to use it in another terminal, for example with the AWS command line:")
    print(f"  set -a; . {os.path.relpath(folder / 'server.env')}; set +a")
    print(f"  aws s3 ls --recursive s3://{BUCKET}")
    print("Ctrl-C stops it, unless a training still uses it", flush=True)
    signal.sigwait(stop)
    return 0


if __name__ == "__main__":
    sys.exit(main())
