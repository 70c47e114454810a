"""Little's law: what is under way is what comes in a second, times the seconds that it takes."""

import math


def in_flight(
    batch_size: int,
    train_step_time: float,
    requests: float,
    kb: float,
    delay_ms: float,
    mb_per_s: float,
) -> int | None:
    """Requests that have to be under way at the same time; ``concurrency`` of FastDataset."""
    samples_per_s = batch_size / train_step_time
    if samples_per_s * kb / 1000 > mb_per_s:
        return None  # whatever is under way, it stands in a queue
    transfer_ms = kb / requests / mb_per_s  # kB / (MB/s) is ms
    return math.ceil(samples_per_s * requests * (delay_ms + transfer_ms) / 1000)
