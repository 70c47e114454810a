"""Compare a store with what it should have, and mend it."""

import zarr
from tqdm import tqdm
from zarr.core.sync import sync

from src.data.build import add_statistics
from src.data.checked_store import CheckedStore
from src.data.chunks import bad_chunks
from src.data.store import open_store
from src.run.errors import UserError


def damage(url: str) -> list[str]:
    """The keys of all chunks of a store that are missing or damaged, and of unfinished parts.

    Reads the whole store: fields, statistics, and what else lies there.
    """
    store = open_store(url)
    try:
        # Not the consolidated metadata, which know the fields alone.
        root = zarr.open_group(store, mode="r", use_consolidated=False)
    except FileNotFoundError as error:
        raise UserError(f"{url}: there is no Zarr store") from error
    bad = []
    if root.attrs.get("regions_left"):
        bad.append("regions that were never written")
    for path in sync(groups_without_description(store)):
        bad.append(f"{path}/zarr.json")
    # An array whose description is lost is known from the consolidated metadata alone.
    nodes = dict(zarr.open_group(store, mode="r").members())
    nodes |= dict(root.members(max_depth=None))
    for path, node in tqdm(nodes.items(), url, disable=None):
        is_in_group = "/" in path
        if isinstance(node, zarr.Array):
            # A projection's single number, beside the fields, is not written if it is 0.
            if node.ndim or is_in_group:
                bad += bad_chunks(store, path)
            continue
        # Consolidated metadata are written last. A group of groups has none, and no arrays either.
        is_finished = bool(node.metadata.consolidated_metadata)
        if is_in_group and any(node.array_keys()) and not is_finished:
            bad.append(path)
    return bad


async def groups_without_description(store: CheckedStore) -> list[str]:
    """Paths of groups that nothing else finds, because their zarr.json is lost."""
    described = set()
    async for key in store.list():
        path, _, file = key.rpartition("/")
        if file == "zarr.json":
            described.add(path)
    parents = {path.rpartition("/")[0] for path in described}
    # Not the root, which is open already, and has another name in Zarr 2.
    return sorted(parents - described - {""})


def note_damaged_regions(url: str, bad: list[str]) -> None:
    """Make the next build of this store begin with the first damaged region.

    Only that: until its source is open, the store stays as it is.
    """
    group = zarr.open_group(open_store(url, read_only=False), mode="r+")
    arrays = set(group.array_keys())
    damaged = []
    for key in bad:
        name, _, place = key.removesuffix("/zarr.json").partition("/c/")
        if name in arrays:
            # From the first region on, for an axis or a lost description.
            is_of_field = "/" in place
            damaged.append(int(place.split("/")[0]) if is_of_field else 0)
    if damaged:
        group.attrs["first_damaged_region"] = min(damaged)


def mend_statistics(url: str, bad: list[str]) -> None:
    """Compute damaged statistics again, from the fields."""
    if "statistics/zarr.json" in bad:
        zarr.open_group(open_store(f"{url}/statistics", read_only=False), mode="a")
    periods = set()
    for key in bad:
        kind, *place = key.split("/")
        if kind == "statistics" and len(place) > 1:
            periods.add(place[0])
    ours = zarr.open_group(open_store(url), mode="r").attrs.get("command")
    if periods and not ours:
        # Which variables and levels of another store were meant, only that command says.
        raise UserError(f"{url}: damaged statistics: run `statistics` again, as before")
    for period in periods:
        first, last = period.split("_")
        add_statistics(url, (first, last))
