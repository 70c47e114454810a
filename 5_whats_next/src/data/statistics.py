"""Statistics of the training months, and the rule that keeps the validation months out of them.

Shapes: V variables, T months, H latitudes, W longitudes.
"""

from collections.abc import Sequence

import numpy as np

from src.errors import UserError


def check_months(
    num_months: int, window: int, train_months: tuple[int, int], val_months: tuple[int, int]
) -> None:
    """Both periods lie inside the data, and at least one window apart."""
    for key, (start, end) in (("train_months", train_months), ("val_months", val_months)):
        if not 0 <= start < end <= num_months:
            raise UserError(
                f"data.dataset.{key}: [{start}, {end}] is not a period within the {num_months} "
                "months of the data"
            )
    gap = max(val_months[0] - train_months[1], train_months[0] - val_months[1])
    if gap < window:
        raise UserError(
            f"data.dataset.val_months: {list(val_months)} is {max(gap, 0)} months away from "
            f"train_months {list(train_months)}; allowed: at least one window, {window} months"
        )


def check_counts(least: int = 1, **counts: int) -> None:
    """Raise UserError for a number of samples below ``least``."""
    for key, count in counts.items():
        if count < least:
            raise UserError(f"data.dataset.{key}: {count} is too small; allowed: {least} and more")


def valid_statistics(values: np.ndarray, variables: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (V,) over the valid elements of ``values`` (V, ...)."""
    for name, field in zip(variables, values, strict=True):
        if np.nanmin(field, initial=np.inf) >= np.nanmax(field, initial=-np.inf):
            raise UserError(
                f"data.dataset: {name} has no valid value in the training months, or only one"
            )
    # float64: a float32 sum over millions of temperatures near 300 K loses the digits that matter.
    flat = values.reshape(len(values), -1).astype(np.float64)
    return np.nanmean(flat, axis=1).astype(np.float32), np.nanstd(flat, axis=1).astype(np.float32)


def normalise(values: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Mean 0 and standard deviation 1 for each variable of ``values`` (V, T, H, W)."""
    return (values - mean[:, None, None, None]) / std[:, None, None, None]


def monthly_climatology(fields: np.ndarray, calendar_month: np.ndarray) -> np.ndarray:
    """Mean of each calendar month: (V, 12, H, W) from ``fields`` (V, T, H, W).

    A calendar month that the training period lacks gets the mean of the others.
    """
    months = [fields[:, calendar_month == month] for month in range(12)]
    overall = fields.mean(axis=1)
    return np.stack([month.mean(axis=1) if month.shape[1] else overall for month in months], axis=1)
