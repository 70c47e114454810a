"""An ocean of any size that needs no input: each value is a function of (seed, coordinates).

Nobody would train on it for its science. It is there to be large: terabytes, written by as many
processes as there are, in any order, and after a kill only what is missing.

Shapes: V variables, T months, H latitudes, W longitudes.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr

NUM_WAVES = 12
# Mean, amplitude of the season, of the waves and of the noise, and the unit.
VARIABLES = {
    "sea_surface_temperature": (288.0, 4.0, 3.0, 0.1, "K"),
    "salinity": (35.0, 0.2, 1.0, 0.02, "1e-3"),
    "sea_surface_height": (0.0, 0.05, 0.3, 0.01, "m"),
    "current_speed": (0.3, 0.02, 0.15, 0.01, "m s-1"),
}


@dataclass(frozen=True)
class Cube:
    """Waves that travel over a globe with land, a season, and noise.

    Args:
        months: time steps.
        height: latitudes from pole to pole.
        width: longitudes round the globe.
        seed: another seed gives another ocean.
    """

    months: int
    height: int
    width: int
    seed: int = 0

    @cached_property
    def axes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Months since the start (T,), latitudes (H,) and longitudes (W,) in radians."""
        lat = (np.arange(self.height) + 0.5) / self.height * np.pi - np.pi / 2
        lon = np.arange(self.width) / self.width * 2 * np.pi
        return np.arange(self.months, dtype=float), lat, lon

    @cached_property
    def seasons(self) -> tuple[np.ndarray, np.ndarray]:
        """The year's wave (T,) and its factor (H,), for whole axes like ``waves``."""
        time, lat, _ = self.axes
        return np.cos((time - 7) / 12 * 2 * np.pi), np.sin(lat)

    @cached_property
    def waves(self) -> dict[str, list[tuple[np.ndarray, ...]]]:
        """For each variable, and for the land, cosine and sine of each wave along the axes.

        They are computed for whole axes: the sine of a number may differ in its last bit with the
        length of the array that the number stands in.
        """
        generator, (time, lat, lon) = np.random.default_rng(self.seed), self.axes
        found: dict[str, list[tuple[np.ndarray, ...]]] = {}
        for name in (*VARIABLES, "land"):
            found[name] = []
            for _ in range(NUM_WAVES):
                # Round the globe a wave has to fit a whole number of times.
                around, along = generator.integers(1, 9), generator.uniform(1, 12)
                speed, phase = generator.uniform(-0.3, 0.3), generator.uniform(0, 2 * np.pi)
                angle_t = (0 if name == "land" else speed) * time + phase
                parts = (angle_t, along * lat, around * lon)
                found[name].append(tuple(np.exp(1j * part).astype(np.complex64) for part in parts))
        return found

    def sum_of_waves(self, name: str, t: slice, y: slice, x: slice) -> np.ndarray:
        """(T, H, W) of a part, standard deviation about 1; added in the same order everywhere."""
        total = np.zeros([len(range(s.start, s.stop)) for s in (t, y, x)], np.float32)
        for time, lat, lon in self.waves[name]:
            front = time[t, None] * lat[y]
            total += front.real[..., None] * lon.real[x]
            total -= front.imag[..., None] * lon.imag[x]
        return total * np.float32((2 / NUM_WAVES) ** 0.5)

    def land(self, y: slice, x: slice) -> np.ndarray:
        """(H, W): whether there is land, the same in all months; about a third of the globe."""
        return self.sum_of_waves("land", slice(0, 1), y, x)[0] > 0.4

    def block(self, name: str, t: slice, y: slice, x: slice) -> np.ndarray:
        """Values of a variable (T, H, W), float32, NaN on land."""
        mean, season, amplitude, noise, _ = VARIABLES[name]
        values = np.float32(amplitude) * self.sum_of_waves(name, t, y, x)
        # Summer in one hemisphere is winter in the other; the poles have more of both.
        time, lat = self.seasons
        yearly = time[t, None] * lat[y]
        values += (mean + season * yearly).astype(np.float32)[..., None]
        values += np.float32(noise) * self.noise(name, t, y, x)
        values[:, self.land(y, x)] = np.nan
        return values

    def noise(self, name: str, t: slice, y: slice, x: slice) -> np.ndarray:
        """(T, H, W) from -1 to 1: a hash of the position, so there is no generator to seed."""
        number = np.uint32(list(VARIABLES).index(name) + 1 + 64 * self.seed)
        steps, rows, columns = (np.arange(s.start, s.stop, dtype=np.uint32) for s in (t, y, x))
        place = mix(mix(mix(steps ^ number)[:, None] + rows)[..., None] + columns)
        return place.astype(np.float32) * np.float32(2.0**-31) - np.float32(1)

    def fields(self, chunk: tuple[int, int, int]) -> xr.Dataset:
        """All variables as dask arrays; nothing is computed before it is asked for."""
        time = np.datetime64("1900-01") + np.arange(self.months)
        shape = (self.months, self.height, self.width)
        chunks = tuple(min(c, n) for c, n in zip(chunk, shape, strict=True))

        def block_at(block_info: Any, variable: str) -> np.ndarray:
            place = block_info[None]["array-location"]
            return self.block(variable, *(slice(*pair) for pair in place))

        grid = da.core.normalize_chunks(chunks, shape, dtype=np.float32)
        content = {
            name: (
                ("time", "lat", "lon"),
                da.map_blocks(
                    block_at, chunks=grid, dtype=np.float32, meta=np.empty((0, 0, 0), np.float32),
                    variable=name,
                ),
                {"units": settings[-1]},
            )
            for name, settings in VARIABLES.items()
        }  # fmt: skip
        _, lat, lon = self.axes
        coordinates = {
            "time": time.astype("datetime64[ns]"),
            "lat": ("lat", np.rad2deg(lat), {"units": "degrees_north"}),
            "lon": ("lon", np.rad2deg(lon), {"units": "degrees_east"}),
        }
        notes = {"source": "synthetic ocean, src/data/cube.py", "seed": self.seed}
        return xr.Dataset(content, coordinates, notes)


def mix(numbers: np.ndarray) -> np.ndarray:
    """Scatter 32-bit integers: neighbours get values that have nothing in common.

    The same hash as in ``src/model/masking.py``, where its source stands.
    """
    numbers = (numbers ^ (numbers >> np.uint32(16))) * np.uint32(0x21F0AAAD)
    numbers = (numbers ^ (numbers >> np.uint32(15))) * np.uint32(0x735A2D97)
    return numbers ^ (numbers >> np.uint32(15))
