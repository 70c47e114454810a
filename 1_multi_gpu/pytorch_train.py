"""Train a masked autoencoder in plain PyTorch, on one device.

uv run python pytorch_train.py                         real ocean data, a minute on a laptop
uv run python pytorch_train.py -c config/longer.yaml   a bigger model, a quarter of an hour
uv run python pytorch_train.py --model.mask_ratio 0.9  override any key of the config
uv run python pytorch_train.py --resume output/run_1   go on where a run stopped
"""

import os
import sys
import time

import torch
from jsonargparse import Namespace
from tqdm import tqdm

from src.data.loaders import Loaders
from src.model.pytorch_model import MaskedAutoencoder
from src.run.checkpoint import TrainingState, check_finite, read_checkpoint
from src.run.config import CHAPTER, TrainerSettings, choose_device, parse_config
from src.run.errors import one_line_errors
from src.run.evaluation import as_text, evaluate, report
from src.run.optim import clip_gradients, make_optimizer
from src.run.plots import plot_curves, plot_reconstructions
from src.run.seed import set_seed
from src.run.stop import StopRequest, exit_at_signals
from src.run.tracking import Tracker, new_run_folder

# Their arguments are the settings: the sections model, data and trainer of the config.
CLASSES = (MaskedAutoencoder, Loaders, TrainerSettings)


def main() -> int:
    """Read the settings, train, report. Returns the exit code."""
    config, resolved = parse_config(__doc__, CLASSES)
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
    state = TrainingState(model, optimizer, scheduler, resolved)

    # A resumed run goes on in its own folder, a new one gets a new folder: none is overwritten.
    if config.resume:
        folder = config.resume
        state.load(folder / "checkpoints/last.ckpt")
    else:
        folder = new_run_folder(CHAPTER / settings.output_dir)

    shown_folder = os.path.relpath(folder)
    print(f"device    {device}, PyTorch {torch.__version__}")
    print(f"data      {len(loaders.train_set)} samples {sample_shape}")
    print(f"model     {sum(p.numel() for p in model.parameters()):,} parameters")
    print(f"training  steps {state.step} to {total_steps}")
    print(f"output    {shown_folder}", flush=True)

    # It appends to state.rows, so that they are part of each checkpoint.
    tracker = Tracker(folder, settings.wandb, resolved, state.rows, state.run_id)
    state.run_id = tracker.run.id
    stop = StopRequest()
    train(state, total_steps, loaders, settings, tracker, stop)
    if stop.number or state.step < total_steps:
        print(f"stopped after step {state.step}; go on with --resume {shown_folder}")
        return 128 + stop.number if stop.number else 0

    exit_at_signals()  # all is saved
    model.load_state_dict(read_checkpoint(tracker.best)["model"])
    scores = report(model, loaders, folder)
    plot_reconstructions(model, loaders.val_set, folder)
    plot_curves(folder, loaders.val_set, scores)
    print(f"look at {shown_folder}: reconstructions.png, curves.png")
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
    model, optimizer, scheduler = state.model, state.optimizer, state.scheduler
    device = next(model.parameters()).device
    # Copies from pinned memory (loaders.py) need not be waited for.
    is_pinned = device.type == "cuda"
    checkpoint_every = settings.checkpoint_every_n_steps or total_steps
    # The loader asks for the step when an epoch begins: after a resume it may be inside of one.
    train_loader = loaders.train_loader(lambda: state.step)
    val_loader = loaders.val_loader()
    bar = tqdm(total=total_steps, initial=state.step, disable=None)

    while state.step < total_steps:
        epoch = state.step // loaders.steps_per_epoch
        first_step = state.step
        start = time.perf_counter()

        for batch in train_loader:
            # Forward. The samples' numbers and the epoch decide which patches are hidden.
            x, index = (part.to(device, non_blocking=is_pinned) for part in batch)
            output = model(x, index, epoch)

            # Loss: the mean over hidden ocean values. Land alone has none: its loss is 0.
            loss = output.squared_error / output.valid_count.clamp(min=1)

            # Backward.
            optimizer.zero_grad()
            loss.backward()
            grad_norm = clip_gradients(model, settings.gradient_clip_val)

            # Step.
            lr = scheduler.get_last_lr()[0]
            optimizer.step()
            scheduler.step()
            state.step += 1
            bar.update()

            # Log. To read a number is to wait for the GPU, so not in each step.
            if state.step % settings.log_every_n_steps == 0:
                check_finite(model, state.step)
                samples = (state.step - first_step) * loaders.batch_size
                row = {
                    "train_loss": loss.item(),
                    "grad_norm": grad_norm.item(),
                    "lr": lr,
                    "samples_per_second": samples / (time.perf_counter() - start),
                }
                tracker.log(state.step, epoch, row)
                bar.set_postfix(row)

            # Validate at the end of an epoch. The best checkpoint is written before the last one:
            # after a crash between the two, the resumed run repeats the last steps and writes both
            # again. In the other order the best one would be lost.
            is_epoch_end = state.step % loaders.steps_per_epoch == 0
            if is_epoch_end:
                scores = evaluate(model, val_loader)
                tracker.log(state.step, epoch, scores)
                bar.write(f"epoch {epoch + 1}: {as_text(scores)}")
                if scores["val_loss"] < state.best_loss:
                    state.best_loss = scores["val_loss"]
                    state.save(tracker.best)

            # Save. == and not >=: the settings keep max_steps; a run resumed there goes on.
            is_stopping = stop.number > 0 or state.step == settings.max_steps
            if is_epoch_end or is_stopping or state.step % checkpoint_every == 0:
                state.save(tracker.last)
            if is_stopping:
                return


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
