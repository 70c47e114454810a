"""What a training step computes, keeps and moves, by formulas; count_step.py checks them.

In floating-point operations (FLOP), numbers kept for the gradients, and bytes.
"""

from typing import NamedTuple


class Sizes(NamedTuple):
    """What the formulas need: tokens, widths, depths."""

    batch: int
    tokens: int  # N, patches of a sample
    visible: int  # K, of them
    patch: int  # P, values in a patch
    dim: int  # D
    depth: int
    heads: int
    decoder_dim: int  # E
    decoder_depth: int
    decoder_heads: int
    recompute: bool = False  # activation checkpointing
    lean: bool = False  # lean_decoder

    @property
    def num_predicted(self) -> int:
        """Tokens that the decoder's last block returns, and the head predicts."""
        return self.tokens - self.visible if self.lean else self.tokens


def block_flops(tokens: int, dim: int) -> float:
    """A transformer block, forward, for one sample.

    The linear maps: 3 for queries, keys and values, 1 for the output, 4 and 4 in the MLP, each
    2 x tokens x dim^2. Attention: scores and weighted sum, each 2 x tokens^2 x dim.
    """
    return 2 * tokens * dim**2 * (3 + 1 + 4 + 4) + attention_flops(tokens, dim)


def attention_flops(tokens: int, dim: int, queries: int | None = None) -> float:
    return 2 * 2 * tokens * (tokens if queries is None else queries) * dim


def decoder_flops(s: Sizes) -> float:
    """The decoder's blocks, forward, for one sample.

    A lean decoder computes the first block's queries, keys and values of hidden tokens once for the
    batch, and behind the last block's attention, its queries included, hidden tokens only.
    """
    whole = s.decoder_depth * block_flops(s.tokens, s.decoder_dim)
    if not s.lean:
        return whole
    idle: float = 2 * s.decoder_dim**2 * s.visible * (1 + 1 + 4 + 4)
    idle += attention_flops(s.tokens, s.decoder_dim, s.visible)
    if s.decoder_depth > 1:
        idle += 2 * s.decoder_dim**2 * 3 * (s.tokens - s.visible - s.tokens / s.batch)
    return whole - idle


def step_flops(s: Sizes) -> tuple[float, float]:
    """FLOPs of a forward pass and of a training step, by formula.

    The gradients take twice the forward pass: once for the weights, once for the inputs. The first
    map's inputs need none. Fused attention computes its scores again instead of keeping them: 2.5
    times instead of twice. Activation checkpointing computes the blocks a second time, but for the
    last map of each, whose output no gradient needs.
    """
    embed = 2 * s.visible * 2 * s.patch * s.dim  # each patch comes with what of it is valid
    encoder = s.depth * block_flops(s.visible, s.dim)
    decoder = decoder_flops(s)
    ends = 2 * s.visible * s.dim * s.decoder_dim + 2 * s.num_predicted * s.decoder_dim * s.patch
    forward = embed + encoder + decoder + ends
    again = s.depth * attention_flops(s.visible, s.dim)
    again += (s.decoder_depth - 1) * attention_flops(s.tokens, s.decoder_dim)
    again += attention_flops(s.tokens, s.decoder_dim, s.num_predicted)
    last = s.depth * 2 * s.visible * 4 * s.dim**2
    last += (s.decoder_depth * s.tokens - s.tokens + s.num_predicted) * 2 * 4 * s.decoder_dim**2
    blocks = (encoder + decoder - last) * s.recompute
    return s.batch * forward, s.batch * (3 * forward - embed + again / 2 + blocks)


def block_floats(tokens: int, dim: int, heads: int) -> float:
    """What a block keeps of one sample for its gradients, in numbers.

    Per token: the inputs of both norms, of the four linear maps and of the GELU (2 + 1 + 1 + 1 + 4
    + 4 widths), queries, keys and values (3), and for each norm a mean and a deviation, for each
    head a sum of exponentials.
    """
    return tokens * (dim * (2 + 1 + 1 + 1 + 4 + 4 + 3) + 4 + heads)


def decoder_floats(s: Sizes) -> float:
    """The same for the decoder's blocks; with activation checkpointing, their inputs.

    A lean decoder's first block has at its first norm, and in front of its queries, keys and
    values, the visible tokens and the batch's template. Its last block has all tokens there and as
    keys and values (4 widths), and in front of the queries and from there on those it is asked for.
    """
    dim, first = s.decoder_dim, s.visible + s.tokens / s.batch
    if s.recompute:
        inputs = s.decoder_depth * s.tokens
        return dim * (inputs - (s.tokens - first) * (s.lean and s.decoder_depth > 1))
    whole = block_floats(s.tokens, dim, s.decoder_heads)
    if not s.lean:
        return s.decoder_depth * whole
    last = s.tokens * (4 * dim + 2) + s.num_predicted * (14 * dim + 4 + s.decoder_heads)
    if s.decoder_depth == 1:
        return last
    return (s.decoder_depth - 1) * whole - (s.tokens - first) * (2 * dim + 2) + last


def activation_bytes(s: Sizes) -> float:
    """What a forward pass keeps for the gradients, by formula.

    Outside the blocks: the patches, the inputs of both last norms, of the decoder's map and of the
    head, the tokens before they are put in order, which a lean decoder does not keep, the errors
    and which of them count (a byte each).
    """
    ends = s.visible * (2 * s.patch + 2 * s.dim) + s.tokens * (s.patch + s.patch / 4)
    ends += 2 * s.num_predicted * s.decoder_dim + s.tokens * s.decoder_dim * (not s.lean)
    kept = s.visible * s.dim if s.recompute else block_floats(s.visible, s.dim, s.heads)
    return 4 * s.batch * (ends + s.depth * kept + decoder_floats(s))


def moved_bytes(s: Sizes, parameters: int) -> float:
    """The least that a step moves: what is kept is written and read; weights are read twice,
    gradients written, read and cleared; AdamW reads and writes weights and its two averages.
    """
    return 2 * activation_bytes(s) + 4 * parameters * (2 + 3 + 6)
