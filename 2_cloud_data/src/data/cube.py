"""An ocean of any size that needs no input: each value is a function of (coordinates, seed)."""

# Nobody would train on it for its science. It is there to be large: written region by region, in
# any order, by as many processes as there are.

from typing import Any

import dask.array as da
import numpy as np
import torch
import xarray as xr

from src.model.masking import hash32

# Mean, amplitude of the waves, and unit.
VARIABLES = {
    "sea_surface_temperature": (288.0, 8.0, "K"),
    "salinity": (35.0, 1.0, "1e-3"),
    "sea_surface_height": (0.0, 0.4, "m"),
    "current_speed": (0.3, 0.1, "m s-1"),
}
NUM_WAVES = 6
Shape = tuple[int, int, int]  # months, latitudes, longitudes


def waves(shape: Shape, seed: int) -> list[tuple[np.ndarray, ...]]:
    """Factors along each axis of waves that go round the globe: (T,), (H,), (W,)."""
    # For whole axes, because the sine of a number can depend, in its last bit, on the length of the
    # array that it is in; products and sums do not.
    generator = np.random.default_rng(seed)
    periods = (12, *shape[1:])  # a year, and once round the globe
    axes = []
    for period, size in zip(periods, shape, strict=True):
        axes.append(2 * np.pi / period * np.arange(size))

    factors = []
    for _ in range(NUM_WAVES):
        frequencies = generator.integers(1, 6, 3)
        phases = generator.uniform(0, 6, 3)
        wave = []
        for axis, frequency, phase in zip(axes, frequencies, phases, strict=True):
            angle = frequency * axis + phase
            wave.append(np.sin(angle).astype(np.float32))
        factors.append(tuple(wave))
    return factors


def block(name: str, shape: Shape, seed: int, place: tuple[slice, ...]) -> np.ndarray:
    """The values of a part of the cube, float32; land is NaN, in the same places in all months."""
    t, y, x = place
    mean, amplitude, _ = VARIABLES[name]
    number = list(VARIABLES).index(name)
    total = np.float32(0)
    elevation = np.float32(0)
    for time, lat, lon in waves(shape, 100 * seed + number):
        total = total + time[t, None, None] * lat[y, None] * lon[x]
    for _, lat, lon in waves(shape, 100 * seed + 99):
        # Without time: land stays where it is.
        elevation = elevation + lat[y, None] * lon[x]
    # Noise as a hash of the place: no generator has to be seeded.
    months, rows, columns = (torch.arange(part.start, part.stop) for part in place)
    key = hash32(months + number)
    key = hash32(key[:, None] + rows)
    bits = hash32(key[..., None] + columns + seed).numpy()
    noise = bits.astype(np.float32) * np.float32(2.0**-32)
    signal = total + np.float32(0.2) * noise
    values = np.float32(mean) + np.float32(amplitude) * signal
    is_land = elevation > 0.8
    return np.where(is_land, np.float32(np.nan), values)


def cube_fields(shape: Shape, chunk: Shape, seed: int) -> xr.Dataset:
    """All variables as dask arrays of these chunks; nothing is computed before it is asked for."""

    def block_at(block_info: Any, variable: str) -> np.ndarray:
        # dask describes under None the block to compute.
        place = tuple(slice(*ends) for ends in block_info[None]["array-location"])
        return block(variable, shape, seed, place)

    grid = da.core.normalize_chunks(chunk, shape, dtype=np.float32)
    fields = {}
    for name, (_, _, unit) in VARIABLES.items():
        array = da.map_blocks(block_at, variable=name, chunks=grid, dtype=np.float32)
        fields[name] = (("time", "lat", "lon"), array, {"units": unit})
    months = np.datetime64("1900-01") + np.arange(shape[0])
    coordinates = {
        "time": months.astype("datetime64[ns]"),
        "lat": np.linspace(-90, 90, shape[1]),
        "lon": np.linspace(0, 360, shape[2], endpoint=False),
    }
    return xr.Dataset(fields, coordinates, {"source": f"synthetic ocean, seed {seed}"})
