"""Two messages of Lightning that nobody here can act on."""

import logging
import warnings


def hide_two_messages() -> None:
    """Hide an advertisement and a warning to Lightning's own developers, and nothing else."""
    # Advises a logger in each run; there is no setting for it.
    messages = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    messages.addFilter(lambda record: "litlogger" not in record.getMessage())
    # https://github.com/Lightning-AI/pytorch-lightning/issues/21326
    warnings.filterwarnings("ignore", r".*isinstance\(treespec, LeafSpec\)")
