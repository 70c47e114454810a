"""Train over a slow line, to kill a run in the middle of an upload by hand.

uv run python -m tests.slow_upload --trainer.run_name mine      and settings of lightning_train.py
"""

import os
import sys
import time

import lightning_train

from src.data.s3_server import connect
from src.run.errors import one_line_errors
from tests.fault_proxy import FaultyProxy, Handler

SECONDS = 5.0  # for a checkpoint


class SlowHandler(Handler):
    """Passes a checkpoint on after some seconds, and says so; anything else at once."""

    def do_GET(self) -> None:  # noqa: N802
        if self.command == "PUT" and ".ckpt" in self.path:
            print(f"upload of {self.path.split('/')[-1]} is under way", flush=True)
            time.sleep(SECONDS)
        super().do_GET()

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815


if __name__ == "__main__":
    with one_line_errors(), FaultyProxy(connect()["AWS_ENDPOINT_URL"]) as proxy:
        proxy.RequestHandlerClass = SlowHandler
        os.environ["EMBEDDED_S3_ENDPOINT"] = proxy.url
        sys.exit(lightning_train.main())
