"""Do the ranks together have the batch of a single process, each sample once?"""

from collections import Counter
from types import ModuleType

from src.data.sampler import epoch_order

SAMPLES, BATCH, SEED = 50, 12, 3  # four steps in an epoch, and two samples are left over


def check(answer: ModuleType) -> None:
    """Raises AssertionError with what is wrong."""
    for world_size in 1, 2, 3, 4, 12:
        for step in 0, 3, 1, 4, 9:  # any step, in any order
            where = f"{world_size} ranks, step {step}" if world_size > 1 else f"1 rank, step {step}"
            parts = [
                [int(i) for i in answer.share(SAMPLES, SEED, BATCH, rank, world_size, step)]
                for rank in range(world_size)
            ]
            sizes, flat = [len(part) for part in parts], [i for part in parts for i in part]
            total = len(flat)
            assert total == BATCH, f"{where}: the global batch has {total} samples, and not {BATCH}"
            assert len(set(sizes)) == 1, (
                f"{where}: the ranks have {sizes} samples, and all wait for the slowest"
            )
            [(sample, times)] = Counter(flat).most_common(1)
            holders = [rank for rank, part in enumerate(parts) if sample in part]
            assert times == 1, (
                f"{where}: sample {sample} comes {times} times, on ranks {holders}: it weighs "
                "more than others"
            )
            epoch, number = divmod(step, SAMPLES // BATCH)
            batch = epoch_order(SAMPLES, SEED, epoch)[number * BATCH : (number + 1) * BATCH]
            foreign = len(set(flat) - set(batch))
            assert not foreign, (
                f"{where} (epoch {epoch}): {foreign} of the {BATCH} samples are not in chapter 0's "
                "batch: this is another training"
            )
