"""A process that is told to end does so in time, even if its step never ends."""

import multiprocessing
import os
import signal
import threading
import time
from contextlib import suppress

from src.run.signals import StopRequest, end_program

# Many machines kill 30 seconds after SIGTERM; a cluster's job may have more. In this time the step,
# or a validation, has to end, its checkpoint has to be written, and uploads get what is left.
SECONDS_AFTER_SIGTERM = float(os.environ.get("SECONDS_AFTER_SIGTERM") or 24)
RESERVE = 2.0  # seconds of them to end after the last upload
# Before a training begins, nothing has to be saved. Less than SLURM's KillWait of 30 seconds.
SECONDS_AT_START = min(10, SECONDS_AFTER_SIGTERM)


class StoppedBySignal(SystemExit):
    """The end of a training that has got a signal, and the time that is left for it."""

    def __init__(self, number: int, deadline: float) -> None:
        super().__init__(128 + number)
        self.deadline = deadline

    def seconds_left(self) -> float:
        """For uploads, say."""
        return max(0.0, self.deadline - RESERVE - time.monotonic())


class TimedStopRequest(StopRequest):
    """StopRequest that ends the process if it still runs SECONDS_AFTER_SIGTERM."""

    def __init__(self) -> None:
        watch_for_sigterm(SECONDS_AFTER_SIGTERM)
        self.deadline = 0.0
        super().__init__()

    def receive(self, number: int, frame: object) -> None:
        """Remember the first signal and its time; a second Ctrl-C ends the process at once."""
        self.deadline = self.deadline or time.monotonic() + SECONDS_AFTER_SIGTERM
        super().receive(number, frame)
        if number == signal.SIGINT:
            # Not with an exception, after which uploads would get some seconds.
            signal.signal(number, lambda number, _: end_now(number))

    def close(self) -> None:
        """As StopRequest, and nobody waits for SIGTERM any more."""
        super().close()
        if not self.number:
            signal.set_wakeup_fd(-1)

    def ending(self, number: int) -> StoppedBySignal:
        """How a training ends for a signal that this rank, or another one, has got."""
        return StoppedBySignal(
            number, self.deadline or time.monotonic() + SECONDS_AFTER_SIGTERM
        )


def end_program_in_time() -> None:
    """Let SIGTERM end the program also where Python handles none: ranks wait for one another."""
    is_over = watch_for_sigterm(SECONDS_AT_START)

    def end(number: int, frame: object) -> None:
        is_over.set()
        end_program(number, frame)

    signal.signal(signal.SIGTERM, end)


def watch_for_sigterm(seconds: float) -> threading.Event:
    """End the process so long after SIGTERM, unless what this returns has been set."""
    # Python calls handlers from its main thread, which may wait for data that never arrive, or for
    # another rank. C code writes each signal's number into this pipe at once.
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    is_over = threading.Event()
    arguments = (reading, seconds, is_over)
    threading.Thread(target=end_in_time, args=arguments, daemon=True).start()
    return is_over


def end_in_time(pipe: int, seconds: float, is_over: threading.Event) -> None:
    """Wait for SIGTERM, and then for the process to end by itself."""
    while os.read(pipe, 1)[0] != signal.SIGTERM:
        pass
    if is_over.wait(seconds):
        return
    with suppress(OSError):  # stdout is closed
        print(
            "ended while it waited for something; the last checkpoint counts",
            flush=True,
        )
    end_now(signal.SIGTERM)


def end_now(number: int) -> None:
    """End without waiting for other threads."""
    for worker in multiprocessing.active_children():
        # One that waits for data would stay.
        worker.kill()
    os._exit(128 + number)
