"""Compare a store with what it should have, and mend it."""

import math

import zarr
from tqdm import tqdm

from src.data.build import add_statistics
from src.data.store import bad_chunks, open_store
from src.errors import UserError


def damage(url: str) -> list[str]:
    """The keys of all chunks of a store that are missing or damaged, and of unfinished parts.

    Reads the whole store: fields, statistics, and further copies.
    """
    store = open_store(url)
    try:
        # Not the consolidated metadata, which know the fields alone.
        root = zarr.open_group(store, mode="r", use_consolidated=False)
    except FileNotFoundError as error:
        raise UserError(f"{url}: there is no Zarr store") from error
    bad = []
    if root.attrs.get("regions_left"):
        bad.append("a region")
    # An array whose description is lost is known from the consolidated metadata alone.
    known = set(zarr.open_group(store, mode="r").array_keys())
    for name in known - set(root.array_keys()):
        bad.append(f"{name}/zarr.json")
    for path, node in tqdm(root.members(max_depth=None), url, disable=None):
        if isinstance(node, zarr.Array):
            bad += bad_chunks(store, path)
            continue
        # Consolidated metadata are written last. A group of groups has none, and no arrays either.
        is_whole = node.metadata.consolidated_metadata or not any(node.array_keys())
        if "/" in path and not is_whole:
            bad.append(path)
    return bad


def note_damaged_regions(url: str, bad: list[str]) -> None:
    """Make the next build of this store begin with the first damaged region.

    Only that: until its source is open, the store stays as it is.
    """
    group = zarr.open_group(open_store(url, read_only=False), mode="r+")
    arrays = dict(group.arrays())
    num_regions = 0
    for array in arrays.values():
        if array.ndim == 3:  # a field, not an axis
            num_regions = math.ceil(array.shape[0] / array.chunks[0])
    damaged = 0
    for key in bad:
        name, _, place = key.removesuffix("/zarr.json").partition("/c/")
        if name in arrays:
            # All regions, for an axis or a lost description.
            is_field = arrays[name].ndim == 3 and place
            region = int(place.split("/")[0]) if is_field else 0
            damaged = max(damaged, num_regions - region)
    group.attrs["damaged_regions"] = damaged


def mend_statistics(url: str, bad: list[str]) -> None:
    """Compute damaged statistics again, from the fields."""
    periods = set()
    for key in bad:
        kind, _, place = key.partition("/")
        if kind == "statistics":
            periods.add(place.split("/")[0])
    for period in periods:
        first, last = period.split("_")
        add_statistics(url, (first, last), again=True)
