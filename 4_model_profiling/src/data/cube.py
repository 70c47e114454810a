"""An ocean of any size that needs no input: each value is a function of its place."""

# Nobody would train on it for its science. It is there to be large: written region by region, in
# any order, by as many processes as there are.

from typing import Any

import dask.array as da
import numpy as np
import xarray as xr

from src.run.reproducibility import hash32

# Mean, amplitude of the waves, and unit.
VARIABLES = {
    "sea_surface_temperature": (288.0, 8.0, "K"),
    "salinity": (35.0, 1.0, "1e-3"),
    "sea_surface_height": (0.0, 0.4, "m"),
    "current_speed": (0.3, 0.1, "m s-1"),
}
NUM_WAVES = 6
Shape = tuple[int, int, int]  # months, latitudes, longitudes


def waves(shape: Shape, chunk: Shape, seed: int) -> tuple[Any, Any]:
    """A sum of waves that go round the globe, (T, H, W), and its part without time, (H, W)."""
    generator = np.random.default_rng(seed)
    periods = (12, *shape[1:])  # a year, and once round the globe
    total: Any = 0
    without_time: Any = 0
    for _ in range(NUM_WAVES):
        frequencies = generator.integers(1, 6, 3)
        phases = generator.uniform(0, 6, 3)
        factors = []
        for axis, size in enumerate(shape):
            position = 2 * np.pi / periods[axis] * np.arange(size)
            angle = frequencies[axis] * position + phases[axis]
            # Of the whole axis, because the sine of a number can depend, in its last bit, on the
            # length of the array that it is in; products and sums do not.
            factor = np.sin(angle).astype(np.float32)
            factors.append(da.from_array(factor, chunk[axis]))
        time, lat, lon = factors
        total = total + time[:, None, None] * lat[:, None] * lon
        without_time = without_time + lat[:, None] * lon
    return total, without_time


def cube_fields(shape: Shape, chunk: Shape) -> xr.Dataset:
    """All variables as dask arrays of these chunks; nothing is computed before it is asked for.

    float32; land is NaN, in the same places in all months.
    """
    axes: list[Any] = []
    for size, length in zip(shape, chunk, strict=True):
        # int: dask computes with the zero of a size's type, and a PositiveInt has none.
        axes.append(da.arange(int(size), chunks=length))
    months, rows, columns = axes
    _, elevation = waves(shape, chunk, 99)
    fields = {}
    for number, (name, (mean, amplitude, unit)) in enumerate(VARIABLES.items()):
        total, _ = waves(shape, chunk, number)
        # Noise as a hash of the place: no generator has to be seeded.
        key = hash32(months + number)
        key = hash32(key[:, None] + rows)
        bits: Any = hash32(key[..., None] + columns)
        noise = bits.astype(np.float32) * np.float32(2.0**-32)
        signal = total + np.float32(0.2) * noise
        values = np.float32(mean) + np.float32(amplitude) * signal
        values = da.where(elevation > 0.8, np.float32(np.nan), values)
        fields[name] = (("time", "lat", "lon"), values, {"units": unit})
    dates = np.datetime64("1900-01") + np.arange(shape[0])
    coordinates = {
        "time": dates.astype("datetime64[ns]"),
        "lat": np.linspace(-90, 90, shape[1]),
        "lon": np.linspace(0, 360, shape[2], endpoint=False),
    }
    return xr.Dataset(fields, coordinates, {"source": "synthetic ocean"})
