"""A process that is told to end does so in time, even if its step never ends."""

import multiprocessing
import os
import signal
import threading
import time
from contextlib import suppress

from src.signals import StopRequest

# Many machines kill 30 seconds after SIGTERM; a cluster's job may have more. In this time the step,
# or a validation, has to end, its checkpoint has to be written, and uploads get what is left.
PATIENCE = float(os.environ.get("SECONDS_AFTER_SIGTERM") or 24)


class TimedStopRequest(StopRequest):
    """StopRequest that ends the process if PATIENCE seconds after SIGTERM it still runs."""

    def __init__(self) -> None:
        # Python calls handlers from its main thread, which may wait for data that never arrive, or
        # for another rank. C code writes each signal's number into this pipe at once.
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing)
        threading.Thread(target=end_in_time, args=(reading,), daemon=True).start()
        super().__init__()


# Wait for SIGTERM, and then for the process to end by itself.
def end_in_time(pipe: int) -> None:
    while os.read(pipe, 1)[0] != signal.SIGTERM:
        pass
    time.sleep(PATIENCE)
    for worker in multiprocessing.active_children():
        # One that waits for data would stay.
        worker.kill()
    with suppress(OSError):  # stdout is closed
        print(
            "ended inside of a step or an upload; the last checkpoint counts",
            flush=True,
        )
    os._exit(128 + signal.SIGTERM)  # without waiting for other threads
