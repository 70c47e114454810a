"""What does a transformer block keep for its gradients?

``kept_memory.py`` measures it, and a formula says it before anything runs. This one is that of
Korthikanti et al. (https://arxiv.org/abs/2205.05198), for numbers of 2 bytes, with dropout. The
blocks of this chapter (src/model/transformer.py) have numbers of 4 bytes and no dropout. Their
attention is fused; with ``explicit`` it is that of slow_module.py, and the matrix of all scores is
in memory. Repair the formula for both, to 3 %.
"""


def kept(batch: int, tokens: int, dim: int, heads: int, explicit: bool) -> float:
    """Bytes that the forward pass of a Block keeps for the gradients, without its weights."""
    scores = 5 * heads * tokens**2
    return batch * (34 * tokens * dim + scores)
