"""The encoder's features of windows, for a task of your own, as a Zarr store or a NetCDF file.

uv run python encode.py output/run_1 features.zarr
uv run python encode.py s3://bucket/checkpoints/mine features.nc --period 1996-01 2005-12 --tokens

Nothing is hidden: the encoder sees every patch that has values. A window gets the mean over its
patches, or with --tokens all of them. Its coordinates are those of its middle.
"""

import argparse
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import xarray as xr
from lightning_train import CLASSES, build
from tqdm import tqdm

from src.data.loaders import Loaders
from src.model.pytorch_model import MaskedAutoencoder
from src.run.checkpoint import read_checkpoint
from src.run.cloud import CloudRun
from src.run.config import choose_device, parse_config
from src.run.errors import UserError, one_line_errors


def main() -> None:
    """Read the run's best checkpoint, encode, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", help="a run's folder, or its address in the cloud")
    parser.add_argument("to", type=Path, help="a new .zarr or .nc")
    parser.add_argument("--period", nargs=2, help="default: the validation's windows")
    parser.add_argument("--stride", nargs=3, type=int, help="default: the window")
    parser.add_argument("--tokens", action="store_true", help="all patches, no mean")
    options, overrides = parser.parse_known_args()
    if options.to.suffix not in (".zarr", ".nc") or options.to.exists():
        raise UserError(f"{options.to}: has to be a new .zarr or .nc")

    model, loaders = open_run(options.run, overrides)
    windows: Any = loaders.val_set
    if options.period:
        stride = options.stride or windows.grid.window
        windows = windows.windows_of(tuple(options.period), stride)
    features = encode(model, loaders, windows, options.tokens)
    part = options.to.with_name(f"{options.to.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    if options.to.suffix == ".zarr":
        features.to_zarr(part)
    else:
        features.to_netcdf(part)
    part.rename(options.to)
    print(f"look at {options.to}: {dict(features.sizes)}")


def open_run(run: str, overrides: list[str]) -> tuple[MaskedAutoencoder, Loaders]:
    """A run's model with the best weights, and its data.

    Args:
        run: its folder, or its address in the cloud.
        overrides: settings that a resumed run may change, such as --data.batch_size.

    Raises:
        UserError: there is no checkpoint that can be read.
    """
    with TemporaryDirectory() as folder:
        path = Path(run, "checkpoints", "best.ckpt")
        if "://" in run:
            path = Path(folder, "best.ckpt")
            cloud = CloudRun(run)
            cloud.download_newer(cloud.objects("best"), path)
        config, _ = parse_config("", CLASSES, overrides, path)
        weights = read_checkpoint(path)["state_dict"]
    loaders = Loaders(**vars(config.data))
    shape = {"sample_shape": list(loaders.val_set.sample_shape)}
    module = build(CLASSES[0], config.get("model"), shape)
    module.configure_model()
    module.load_state_dict(weights)
    device = choose_device(config.trainer.accelerator)
    return module.model.eval().to(device), loaders


@torch.no_grad()
def encode(
    model: MaskedAutoencoder, loaders: Loaders, windows: Any, all_tokens: bool
) -> xr.Dataset:
    """Features of all windows, with the coordinates of their middles."""
    device = next(model.parameters()).device
    batches = []
    loader = loaders.in_order(windows, range(len(windows)))
    for x, _ in tqdm(loader, unit="batch", disable=None):
        features = model.encode(x.to(device))  # (B, N, D), in the order of the patches
        if not all_tokens:
            features = features.nanmean(dim=1)
        batches.append(features.cpu().numpy())
    axes = ["window", "token", "feature"] if all_tokens else ["window", "feature"]
    places = [windows.coordinates(number) for number in range(len(windows))]
    middles = {
        "time": ("window", [time[len(time) // 2] for time, _, _ in places]),
        "lat": ("window", [lat.mean() for _, lat, _ in places]),
        "lon": ("window", [lon.mean() for _, _, lon in places]),
    }
    return xr.Dataset({"features": (axes, np.concatenate(batches))}, middles)


if __name__ == "__main__":
    with one_line_errors():
        main()
