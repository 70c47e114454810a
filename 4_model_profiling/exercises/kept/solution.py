"""Each operator keeps what its own gradient needs: count those tensors, and each only once."""


def kept(batch: int, tokens: int, dim: int, heads: int, explicit: bool) -> float:
    """Bytes that the forward pass of a Block keeps for the gradients, without its weights."""
    # The inputs of both norms and of the four linear maps (1 + 1 + 1 + 4), of the GELU, and
    # queries, keys and values.
    widths = 2 + 1 + 1 + 1 + 4 + 4 + 3
    # softmax keeps what it gives; fused attention a number for each token in its place.
    scores = heads * tokens * (tokens if explicit else 1)
    norms = 2 * 2 * tokens  # a mean and a deviation
    return 4 * batch * (widths * tokens * dim + norms + scores)
