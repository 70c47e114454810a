"""Train a masked autoencoder in plain PyTorch, on one device.

uv run python pytorch_train.py                         real ocean data, a minute on a laptop
uv run python pytorch_train.py -c config/longer.yaml   a bigger model, some minutes
uv run python pytorch_train.py --model.mask_ratio 0.9  override any key of the config
uv run python pytorch_train.py --resume output/run_1   go on where a run stopped
"""

import math
import os
import sys
import time
from contextlib import closing
from pathlib import Path

import torch
from jsonargparse import Namespace
from tqdm import tqdm

from src.data.loaders import Loaders
from src.model.pytorch_model import MaskedAutoencoder
from src.run.config import CHAPTER, choose_device, parse_config
from src.run.errors import one_line_errors
from src.run.evaluation import evaluate
from src.run.optim import clip_gradients, make_optimizer
from src.run.report import draw, report
from src.run.seed import set_seed
from src.run.signals import StopRequest
from src.run.tracking import Tracker, new_run_folder, save_settings
from src.run.training_state import TrainingState


def main() -> int:
    """Read the settings, train, report. Returns the exit code."""
    config, resolved = parse_config(__doc__)
    settings = config.trainer
    seed = config.seed_everything
    device = choose_device(settings.accelerator)
    set_seed(seed, settings.deterministic)

    # Data, model, optimiser.
    loaders = Loaders(**vars(config.data), seed=seed)
    sample_shape = loaders.train_set.sample_shape
    model = MaskedAutoencoder(sample_shape, **vars(config.model), seed=seed).to(device)
    total_steps = settings.max_epochs * loaders.steps_per_epoch
    optimizer, scheduler = make_optimizer(model, total_steps, **vars(config.optimizer))
    state = TrainingState(model, optimizer, scheduler)

    # A resumed run goes on in its own folder, a new one gets a new folder: none is overwritten.
    if config.resume:
        folder = Path(config.resume)
        state.load(folder / "checkpoints" / "last.pt")
    else:
        folder = new_run_folder(CHAPTER / settings.output_dir)

    where = os.path.relpath(folder)
    print(
        f"device    {device}, {torch.get_num_threads()} threads, PyTorch {torch.__version__}"
    )
    print(
        f"data      {len(loaders.train_set)} training, {len(loaders.val_set)} validation "
        f"{sample_shape}"
    )
    print(f"model     {sum(p.numel() for p in model.parameters()):,} parameters")
    print(
        f"training  steps {state.step} to {total_steps}, {loaders.batch_size} samples each"
    )
    print(f"output    {where}", flush=True)

    # Also after a resume, which may have changed some: the next one reads them from here.
    save_settings(folder, resolved)
    tracker = Tracker(folder, settings.wandb, state.step, state.run_id)
    state.run_id = tracker.run.id
    with closing(StopRequest()) as stop:
        train(state, total_steps, loaders, settings, tracker, stop)
    if stop.number or state.step < total_steps:
        print(f"stopped after step {state.step}; go on with --resume {where}")
        return 128 + stop.number if stop.number else 0
    with_pictures = settings.picture_every_n_epochs > 0
    report(model, loaders.val_set, tracker, state.step, with_pictures)
    return 0


def train(
    state: TrainingState,
    total_steps: int,
    loaders: Loaders,
    settings: Namespace,
    tracker: Tracker,
    stop: StopRequest,
) -> None:
    """Train to ``total_steps``, or until a signal or ``settings.max_steps``."""
    device = next(state.model.parameters()).device
    # Copies from pinned memory (loaders.py) need not be waited for.
    is_pinned = device.type == "cuda"
    checkpoints = tracker.folder / "checkpoints"
    checkpoint_every = settings.checkpoint_every_n_steps or total_steps
    picture_every = settings.picture_every_n_epochs or math.inf
    # The loader asks for the step when an epoch begins: after a resume it may be inside of one.
    train_loader = loaders.train_loader(lambda: state.step)
    val_loader = loaders.val_loader()
    bar = tqdm(total=total_steps, initial=state.step, disable=None)

    is_stopping = False
    while state.step < total_steps and not is_stopping:
        epoch = state.step // loaders.steps_per_epoch
        first_step = state.step
        start = time.perf_counter()

        for batch in train_loader:
            # Forward. The samples' numbers and the epoch decide which patches are hidden.
            x, index = (part.to(device, non_blocking=is_pinned) for part in batch)
            output = state.model(x, index, epoch)

            # Loss: the mean over hidden ocean values. Land alone has none: its loss is 0.
            loss = output.squared_error / output.valid_count.clamp(min=1)

            # Backward.
            state.optimizer.zero_grad()
            loss.backward()

            # Clip.
            clip_gradients(state.model, settings.gradient_clip_val, state.step + 1)

            # Step.
            lr = state.scheduler.get_last_lr()[0]
            state.optimizer.step()
            state.scheduler.step()
            state.step += 1
            bar.update()

            # Log.
            if state.step % settings.log_every_n_steps == 0:
                samples = (state.step - first_step) * loaders.batch_size
                row = {
                    "train_loss": loss.item(),
                    "lr": lr,
                    "samples_per_second": samples / (time.perf_counter() - start),
                }
                tracker.log(state.step, epoch, row)
                bar.set_postfix(row)

            # Validate at the end of an epoch. best.pt is written before last.pt: after a crash
            # between the two, the resumed run repeats the last steps and writes best.pt again. In
            # the other order it would be lost.
            is_epoch_end = state.step % loaders.steps_per_epoch == 0
            if is_epoch_end:
                scores = evaluate(state.model, val_loader)
                tracker.log(state.step, epoch, scores)
                text = ", ".join(f"{key} {value:.4f}" for key, value in scores.items())
                bar.write(f"epoch {epoch + 1} of {settings.max_epochs}: {text}")
                if scores["val_loss"] < state.best_loss:
                    state.best_loss = scores["val_loss"]
                    state.save(checkpoints / "best.pt")

            # Save. == and not >=: config.yaml keeps max_steps; a run resumed there goes on.
            is_stopping = stop.number > 0 or state.step == settings.max_steps
            if is_epoch_end or is_stopping or state.step % checkpoint_every == 0:
                state.save(checkpoints / "last.pt")
            if is_epoch_end and (epoch + 1) % picture_every == 0:
                draw(state.model, loaders.val_set, tracker, state.step, scores={})
            if is_stopping:
                break
    bar.close()
    # Ends the loaders' workers now. Matplotlib keeps this function's variables for a while, and a
    # worker that ends later takes many seconds.
    del train_loader, val_loader


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
