"""Is the curve of the loss the same with one, two and four ranks?"""

from types import ModuleType

import torch
from src.data.lightning_sampler import TrainBatches
from torch import Tensor

SAMPLES, BATCH, PATCHES, HIDDEN, SEED, STEPS = 64, 8, 32, 24, 3, 8  # one epoch


def check(answer: ModuleType) -> None:
    """Raises AssertionError with what is wrong."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, 4, generator=generator, dtype=torch.float64)
    x = x @ torch.randn(4, PATCHES, generator=generator, dtype=torch.float64) / 2

    def part(step: int, rank: int, world_size: int) -> Tensor:
        """Numbers of a rank's samples."""
        batches = TrainBatches(SAMPLES, SEED, BATCH, rank, world_size, lambda: step)
        return torch.tensor(next(iter(batches)))

    def masks(index: Tensor, step: int, rank: int, world_size: int, seed: int = SEED) -> Tensor:
        hidden = torch.as_tensor(answer.hidden(seed, step, index, rank, world_size, PATCHES))
        found, wanted = (tuple(hidden.shape), hidden.dtype), ((len(index), PATCHES), torch.bool)
        where = f"rank {rank} of {world_size}"
        assert found == wanted, f"{where}: shape and type are {found}, and not {wanted}"
        counts = hidden.sum(dim=1)
        assert (counts == HIDDEN).all(), f"{where}: {counts.tolist()} patches are hidden, not 24"
        return hidden

    def curve(world_size: int) -> Tensor:
        """The losses of a linear model, with DDP's sums over the ranks."""
        weight, losses = torch.zeros(PATCHES, PATCHES, dtype=torch.float64), []
        for step in range(STEPS):
            loss, gradient = torch.zeros(()), torch.zeros_like(weight)
            for rank in range(world_size):
                index = part(step, rank, world_size)
                hidden = masks(index, step, rank, world_size)
                visible = x[index].masked_fill(hidden, 0)
                error = (visible @ weight - x[index]).masked_fill(~hidden, 0)
                loss = loss + error.square().sum() / (BATCH * HIDDEN)
                gradient += 2 * visible.T @ error / (BATCH * HIDDEN)
            weight -= 0.5 * gradient
            losses.append(loss)
        return torch.stack(losses)

    index = part(0, 0, 1)
    first = masks(index, 0, 0, 1)
    one = curve(1)
    assert masks(index, 0, 0, 1).equal(first), (
        "step 0 has other masks the second time: a resumed run would follow another curve"
    )
    for what, changed in {
        "step": masks(index, 1, 0, 1),
        "seed": masks(index, 0, 0, 1, SEED + 1),
    }.items():
        same = int((first == changed).all(dim=1).sum())
        assert not same, f"another {what} gives the same mask, for {same} of {BATCH} samples"
    epoch = torch.cat([masks(part(step, 0, 1), step, 0, 1) for step in range(STEPS)])
    same = SAMPLES - len(epoch.unique(dim=0))
    assert not same, f"{same} of {SAMPLES} samples of an epoch have the mask of another one"
    ranks = [masks(part(0, rank, 2), 0, rank, 2) for rank in range(2)]
    assert not ranks[0].equal(ranks[1]), (
        "ranks 0 and 1 hide the same patches: with two ranks a batch has half as many masks"
    )
    for world_size in 2, 4:
        apart = (curve(world_size) / one - 1).abs()
        step = int((apart > 1e-9).int().argmax())
        assert apart[step] <= 1e-9, (
            f"the curves of 1 and {world_size} ranks part at step {step}, by {apart[step]:.1%}, "
            f"and are up to {apart.max():.1%} apart: a sample's mask depends on the number of ranks"
        )
