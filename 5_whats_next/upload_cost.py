"""What uploads cost a training step: with and without them, in turns, in one training.

  uv run python upload_cost.py                      20 turns of each kind, about five minutes
  uv run python upload_cost.py --turns 40           more turns, a narrower answer
  uv run python upload_cost.py --network outage     one network alone
  uv run python upload_cost.py --steps 60           longer turns

The training is that of the default config, on noise, so that no reader competes with the uploads.
A turn is 30 steps, and begins with a checkpoint. In every other turn that is uploaded as well, by
the callback; what has not arrived at the end of the turn does not count, and is not tried again.
The order within a pair of turns changes from pair to pair, so that a machine that slows down slows
both. An epoch of the default config uploads once, too, and is longer: an upload over a slow network
sends more requests in it than in a turn, and in an outage the attempts go on. So at last a whole
epoch counts requests, and the ratio is what they would take from its steps. The server computes on
the same processors, and all requests go through a proxy in this process: a cloud costs less.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from kill_campaign import server
from src.callbacks import CloudUploadCallback
from src.checkpoint_files import save_durably
from src.data.lightning_datamodule import FieldDataModule
from src.data.pytorch_dataset import DummyDataset
from src.data.s3_proxy import Fault, FaultyProxy
from src.device import describe_device
from src.errors import UserError
from src.lightning_errors import one_line_errors
from src.lightning_settings import quiet
from src.model.lightning_module import AutoencoderModule
from tqdm import tqdm

BATCH = 16
EPOCH = 156  # steps of the default config, with one upload
NETWORKS = ("quick", "100 ms", "outage")
MODEL: dict[str, Any] = {"patch_size": [3, 4, 4], "embed_dim": 64, "depth": 2, "num_heads": 4}
MODEL |= {"decoder_embed_dim": 64, "decoder_depth": 2, "decoder_num_heads": 4}


class Turns(CloudUploadCallback):
    """Uploads in every other turn, and times the steps of all of them."""

    def __init__(self, path: str, proxy: FaultyProxy, network: str, turns: int, steps: int) -> None:
        super().__init__(path, upload_on_fit_end=False, run_name="run")
        self.proxy, self.network, self.turns, self.steps = proxy, network, turns, steps
        self.times: dict[bool, list[float]] = {True: [], False: []}  # seconds a step, each turn
        self.seconds, self.before, self.end = 0.0, 0, steps * (2 * turns + 2)
        self.requests: list[int] = []  # of each turn with an upload, and at last of an epoch
        self.bar = tqdm(total=2 * turns, desc=network, disable=not sys.stderr.isatty())

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self.proxy.delay = 0.1 if self.network == "100 ms" else 0.0
        if self.network == "outage":
            self.proxy.faults.append(Fault("reset", times=None))

    def is_on(self, step: int) -> bool:
        pair, second = divmod(step // self.steps, 2)
        return bool(second) == bool(pair % 2)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *_: object
    ) -> None:
        step = trainer.global_step
        is_first = step % self.steps == 0 and step <= self.end
        if is_first:
            self.between_turns(trainer, step)
        self.began = time.perf_counter()
        if is_first and (self.is_on(step) or step == self.end):
            self.offer_new(trainer)

    def between_turns(self, trainer: L.Trainer, step: int) -> None:
        """Let the last upload end, note the last turn, save a checkpoint."""
        assert self.uploader
        self.uploader.run.folder.cancelled = True  # an outage would outlast the turn
        while self.uploader.busy or self.uploader.waiting:
            with self.uploader.changed:
                self.uploader.waiting.clear()
                self.uploader.changed.wait(0.1)
        self.uploader.run.folder.cancelled = False
        if step > 2 * self.steps:  # the first pair is the warm-up
            self.times[self.is_on(step - 1)].append(self.seconds / self.steps)
            if self.is_on(step - 1):
                self.requests.append(self.sent)
            self.bar.update()
        self.seconds, self.before = 0.0, self.proxy.counts.total()
        state = trainer._checkpoint_connector.dump_checkpoint()
        save_durably(state, self.checkpoints / "last.ckpt", step)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *_: object
    ) -> None:
        self.seconds += time.perf_counter() - self.began
        self.sent = self.proxy.counts.total() - self.before  # during steps that were timed
        if trainer.global_step == self.end + EPOCH:
            assert self.uploader
            self.requests.append(self.sent)
            self.uploader.run.folder.cancelled = True

    def report(self, *_: object) -> None:
        """Most of what was saved was not to be uploaded, so there is nothing to report."""

    def lost(self) -> tuple[float, float, float]:
        """What a turn loses, as a share of it: median of the pairs and its middle half."""
        pairs = [on / off - 1 for on, off in zip(self.times[True], self.times[False], strict=True)]
        low, middle, high = statistics.quantiles(pairs, n=4)
        return middle, low, high


def measure(place: Path, endpoint: str, network: str, turns: int, steps: int) -> str:
    """A line of the table."""
    max_steps = steps * (2 * turns + 2) + EPOCH

    def dataset(split: str) -> DummyDataset:
        return DummyDataset(split, (1, 12, 16, 32), BATCH * max_steps, 16)  # type: ignore[arg-type]

    with FaultyProxy(endpoint) as proxy:
        os.environ["AWS_ENDPOINT_URL"] = proxy.url
        callback = Turns(f"s3://bucket/{network.replace(' ', '-')}", proxy, network, turns, steps)
        trainer = L.Trainer(
            accelerator="auto",
            devices=1,
            max_epochs=1,
            max_steps=max_steps,
            limit_val_batches=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            default_root_dir=place / network,
            callbacks=[callback],
        )
        trainer.fit(AutoencoderModule(**MODEL), FieldDataModule(dataset, BATCH))
        callback.bar.close()
    *in_turns, in_epoch = callback.requests
    in_turn = statistics.median(in_turns)
    if not in_turn:
        raise UserError(f"--steps: {steps} is too small: turns end before an upload begins")
    scale = in_epoch / in_turn * steps / EPOCH
    middle, low, high = (1 + share * scale for share in callback.lost())
    on, off = (1000 * statistics.median(callback.times[key]) for key in (True, False))
    return (
        f"{network:<10}{off:>9.2f}{on:>9.2f}{(on - off) * steps:>15.0f}{in_turn:>10.0f}"
        f"{in_epoch:>13}{middle:>10.3f}   {low:.3f} to {high:.3f}"
    )


def main() -> int:
    """Measure each network and print the table."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--turns", type=int, default=20, help="with and without, each so often")
    parser.add_argument("--steps", type=int, default=30, help="of a turn, with one upload")
    parser.add_argument("--network", choices=NETWORKS, help="one of them alone")
    arguments = parser.parse_args()
    if arguments.turns < 2:
        sys.exit(f"error: --turns: {arguments.turns} is too small; allowed: from 2")
    if arguments.steps < 2:
        sys.exit(f"error: --steps: {arguments.steps} is too small; allowed: from 2")
    quiet()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    lines = [f"device    {describe_device(device)}"]
    titles = f"{'':<10}{'off, ms':>9}{'on, ms':>9}{'ms in a turn':>15}{'requests':>10}"
    titles += f"{'in an epoch':>13}{'ratio':>10}"
    lines.append(f"{titles}   middle half of the pairs")
    with tempfile.TemporaryDirectory(prefix="cost-") as place, server(Path(place)) as endpoint:
        for network in [arguments.network] if arguments.network else NETWORKS:
            lines.append(measure(Path(place), endpoint, network, arguments.turns, arguments.steps))
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
