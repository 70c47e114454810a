"""Train a masked autoencoder in plain PyTorch, on one device.

uv run python pytorch_train.py                         real ocean data, a minute on a laptop
uv run python pytorch_train.py -c config/longer.yaml   a bigger model, some minutes
uv run python pytorch_train.py --model.mask_ratio 0.9  override any key of the config
uv run python pytorch_train.py --resume output/run_1   go on where a run stopped
"""

import os
import sys
import time
from pathlib import Path

import torch
from jsonargparse import Namespace
from src.checkpoint import TrainingState
from src.config import CHAPTER, choose_device, parse_config
from src.data.loaders import Loaders
from src.errors import GracefulInterrupt, UserError, one_line_errors
from src.evaluation import evaluate, to_scores
from src.model.pytorch_model import MaskedAutoencoder, Output
from src.optim import make_optimizer
from src.report import draw, report
from src.reproducibility import set_seed
from src.tracking import Tracker, new_run_folder
from tqdm import tqdm


def main() -> int:
    """Read the settings, train, report. Returns the exit code."""
    config, resolved = parse_config(__doc__)
    seed, device = config.seed_everything, choose_device(config.trainer.accelerator)
    set_seed(seed, config.trainer.deterministic)

    loaders = Loaders(**vars(config.data), seed=seed)
    shape = loaders.train_set.sample_shape
    model = MaskedAutoencoder(shape, **vars(config.model), seed=seed).to(device)
    total_steps = config.trainer.max_epochs * loaders.steps_per_epoch
    optimizer, scheduler = make_optimizer(model, total_steps, **vars(config.optimizer))
    state = TrainingState(model, optimizer, scheduler)

    # A resumed run goes on in its own folder, a new one gets a new folder: none is overwritten.
    if config.resume:
        folder = Path(config.resume)
        state.load(folder / "checkpoints" / "last.pt")
    else:
        folder = new_run_folder(CHAPTER / config.trainer.output_dir)
        (folder / "config.yaml").write_text(resolved)
    where = os.path.relpath(folder)
    print(
        f"device    {device}, {torch.get_num_threads()} threads, PyTorch {torch.__version__}"
    )
    print(
        f"data      {len(loaders.train_set)} training, {len(loaders.val_set)} validation {shape}"
    )
    print(f"model     {sum(p.numel() for p in model.parameters()):,} parameters")
    print(
        f"training  steps {state.step} to {total_steps}, {loaders.batch_size} samples each"
    )
    print(f"output    {where}", flush=True)

    tracker = Tracker(folder, config.trainer.wandb, state.step, state.run_id)
    state.run_id = tracker.run.id
    with tracker.run:
        signal_number = train(state, total_steps, loaders, config.trainer, tracker)
        if state.step == total_steps:
            report(model, loaders.val_set, tracker, state.step)
    if state.step < total_steps:
        print(f"stopped after step {state.step}; go on with --resume {where}")
    return 128 + signal_number if signal_number else 0


def train(
    state: TrainingState,
    total_steps: int,
    loaders: Loaders,
    trainer: Namespace,
    tracker: Tracker,
) -> int:
    """Train to ``total_steps``, or until a signal, whose number is returned, or ``max_steps``."""
    interrupt = GracefulInterrupt()
    device, checkpoints = (
        next(state.model.parameters()).device,
        tracker.folder / "checkpoints",
    )
    checkpoint_every = trainer.checkpoint_every_n_steps or total_steps
    picture_every = trainer.picture_every_n_epochs or trainer.max_epochs
    # The loader asks for the step when an epoch begins: a resumed run may begin in the middle.
    train_loader, val_loader = (
        loaders.train_loader(lambda: state.step),
        loaders.val_loader(),
    )
    bar = tqdm(total=total_steps, initial=state.step, unit="step", disable=None)
    stop = False
    while state.step < total_steps and not stop:
        epoch, first = state.step // loaders.steps_per_epoch, state.step
        start = time.perf_counter()
        for x, index in train_loader:
            lr = state.scheduler.get_last_lr()[0]
            # What is hidden follows from the samples' numbers and the epoch.
            output = state.model(x.to(device), index.to(device), epoch)
            loss = train_step(state, output, trainer.gradient_clip_val)
            bar.update()
            if state.step % trainer.log_every_n_steps == 0:
                speed = (
                    (state.step - first)
                    * loaders.batch_size
                    / (time.perf_counter() - start)
                )
                row = {"train_loss": loss, "lr": lr, "samples_per_second": speed}
                tracker.log(state.step, epoch, row)
                bar.set_postfix_str(
                    f"loss {loss:.4f}, {speed:.0f} samples/s", refresh=False
                )
            # Not >=, because a resumed run reads the same max_steps, and goes past it.
            stop = interrupt.signal_number > 0 or state.step == trainer.max_steps
            if state.step % loaders.steps_per_epoch == 0:
                sums = evaluate(state.model, val_loader, baselines={})[
                    "masked autoencoder"
                ]
                scores = to_scores(sums, loaders.val_set)
                tracker.log(state.step, epoch, scores)
                shown = ", ".join(
                    f"{name} {value:.4f}" for name, value in scores.items()
                )
                bar.write(f"epoch {epoch + 1} of {trainer.max_epochs}: {shown}")
                # best.pt first: after a crash between the two, the epoch's end comes again.
                if scores["val_loss"] < state.best_loss:
                    state.best_loss = scores["val_loss"]
                    state.save(checkpoints / "best.pt")
                state.save(checkpoints / "last.pt")
                if (epoch + 1) % picture_every == 0:
                    draw(state.model, loaders.val_set, tracker, state.step, scores={})
            elif stop or state.step % checkpoint_every == 0:
                state.save(checkpoints / "last.pt")
            if stop:
                break
    bar.close()
    # Ends the loaders' workers now. Matplotlib may keep this function's variables until the garbage
    # is collected, and then a worker takes five seconds to end.
    del train_loader, val_loader
    return interrupt.signal_number


def train_step(state: TrainingState, output: Output, clip: float) -> float:
    """Take one optimiser step and return the loss. Raises UserError if it is not finite."""
    # The mean over hidden ocean values. A batch that is all land has none: its loss is 0.
    loss = output.squared_error / output.valid_count.clamp(min=1)
    state.optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(state.model.parameters(), clip)
    # Before the step: a norm that is NaN makes all gradients NaN, and one step all weights.
    if not torch.isfinite(loss + norm):
        raise UserError(
            f"step {state.step + 1}: loss {loss}, gradient {norm}; lower optimizer.lr?"
        )
    state.optimizer.step()
    state.scheduler.step()
    state.step += 1
    return loss.item()


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
