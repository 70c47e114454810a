"""How many requests have to be under way?

A step takes ``train_step_time`` seconds and uses up a batch. A sample takes ``requests`` requests,
on average, and ``kb`` kB in all. An answer needs ``delay_ms`` to begin, and then its bytes come
through one link of ``mb_per_s`` MB/s, after those that were there before it. The line below looks
right, and the model waits. Return the smallest number that never keeps the model waiting, and
``None`` if no number can do that.
"""


def in_flight(
    batch_size: int,
    train_step_time: float,
    requests: float,
    kb: float,
    delay_ms: float,
    mb_per_s: float,
) -> int | None:
    """Requests that have to be under way at the same time; ``concurrency`` of FastDataset."""
    return round(batch_size / train_step_time * delay_ms / 1000)
