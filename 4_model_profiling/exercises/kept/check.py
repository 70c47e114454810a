"""Does the formula say what blocks keep? They run, and what autograd keeps is measured."""

from types import ModuleType
from typing import NamedTuple

import torch
from kept_memory import kept_bytes
from slow_module import ExplicitAttention
from src.model.transformer import Block

CLOSE = 0.03  # relative


class Case(NamedTuple):
    """What the formula is given."""

    batch: int = 2
    tokens: int = 96
    dim: int = 48
    heads: int = 4
    explicit: bool = False

    def __str__(self) -> str:
        return (
            f"{'explicit' if self.explicit else 'fused'} attention, {self.batch} samples, "
            f"{self.tokens} tokens, width {self.dim}, {self.heads} heads"
        )


def measured(case: Case) -> int:
    """Bytes that a block keeps."""
    block = Block(case.dim, case.heads)
    if case.explicit:
        block.attn.__class__ = ExplicitAttention
    x = torch.zeros(case.batch, case.tokens, case.dim)
    return kept_bytes(lambda: block(x).sum(), block.parameters())


def check(answer: ModuleType) -> None:
    """Raises AssertionError with what is wrong."""
    torch.set_num_threads(1)  # faster for tensors this small, on a busy machine much faster
    for explicit in (False, True):
        kind = "explicit" if explicit else "fused"
        small = Case(explicit=explicit)
        for what, large in {
            "the batch": small._replace(batch=4),
            "the tokens": small._replace(tokens=192),
            "the width": small._replace(dim=96),
            "the heads": small._replace(heads=8),
        }.items():
            grows = measured(large) / measured(small)
            assert answer.kept(*small) > 0, f"{small}: nothing is kept, by the formula"
            found = answer.kept(*large) / answer.kept(*small)
            why = ""
            if what == "the tokens":
                why = ": it has a score for each pair of tokens"
                if not explicit:
                    why = ": fused attention never has all scores in memory"
            assert abs(found / grows - 1) < CLOSE, (
                f"{kind} attention, twice {what}: {grows:.2f} times as much is kept, and by the "
                f"formula {found:.2f} times{why}"
            )
        for case in (small, Case(1, 200, 32, 4, explicit), Case(3, 50, 64, 2, explicit)):
            is_kept, found = measured(case), answer.kept(*case)
            assert abs(found / is_kept - 1) < CLOSE, (
                f"{case}: {is_kept / 1e3:.0f} kB are kept, and {found / 1e3:.0f} by the formula: "
                f"{found / is_kept:.2f} times"
            )
