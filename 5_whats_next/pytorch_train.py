"""Train a masked autoencoder in plain PyTorch, on one device.

  uv run python pytorch_train.py                         real ocean data, a minute on a laptop
  uv run python pytorch_train.py -c config/longer.yaml   a bigger model, some minutes
  uv run python pytorch_train.py --model.mask_ratio 0.9  override any key of the config
  uv run python pytorch_train.py --resume output/run_1   continue where a run stopped
  uv run python pytorch_train.py --print_config          print the configuration and exit

Each run writes its metrics, checkpoints, configuration and pictures to a folder output/run_N.
"""

import os
import sys
import time

import torch
import yaml
from jsonargparse import Namespace
from src.checkpoint import TrainingState, checkpoint_to_resume
from src.config import CHAPTER, parse_config, run_folder
from src.data.loaders import Loaders, make_loaders
from src.device import choose_device, describe_device
from src.errors import UserError, one_line_errors
from src.evaluation import validate
from src.interrupt import GracefulInterrupt
from src.model.pytorch_model import MaskedAutoencoder
from src.optim import make_optimizer
from src.report import draw, report
from src.reproducibility import set_seed
from src.tracking import Tracker, new_run_folder, wandb_mode
from torch import Tensor
from tqdm import tqdm


def main() -> int:
    """Read the settings and train. Returns the exit code."""
    # Whatever can be wrong with the settings is found before any work starts.
    config, resolved = parse_config(__doc__)
    device = choose_device(config.trainer.accelerator)
    set_seed(config.seed_everything, config.trainer.deterministic)
    with make_loaders(**vars(config.data), seed=config.seed_everything) as loaders:
        return run(config, resolved, loaders, device)


def run(config: Namespace, resolved: str, loaders: Loaders, device: torch.device) -> int:
    """Build the model, train it, report. Returns the exit code."""
    trainer, train_set, val_set = config.trainer, loaders.train_set, loaders.val_set
    shape, seed = train_set.sample_shape, config.seed_everything
    model = MaskedAutoencoder(shape, **vars(config.model), seed=seed).to(device)
    total_steps = trainer.max_epochs * loaders.steps_per_epoch
    optimizer, scheduler = make_optimizer(model, total_steps, **vars(config.optimizer))
    state = TrainingState(model, optimizer, scheduler, yaml.safe_load(resolved))
    mode = wandb_mode(trainer.wandb)

    with GracefulInterrupt() as interrupt:
        # A resumed run goes on in its own folder, a new one gets a new folder: none is overwritten.
        if config.resume:
            folder = run_folder(config.resume)
            state.load(checkpoint_to_resume(config.resume))
        else:
            folder = new_run_folder(CHAPTER / trainer.output_dir)
            (folder / "config.yaml").write_text(resolved)
        where, samples = (
            os.path.relpath(folder),
            f"{len(train_set)} training, {len(val_set)} validation",
        )
        print(f"device    {describe_device(device)}")
        print(f"data      {samples} samples of shape {shape}")
        print(f"model     {sum(p.numel() for p in model.parameters()):,} parameters")
        print(
            f"training  steps {state.step} to {total_steps}, {config.data.batch_size} samples each"
        )
        print(f"output    {where}", flush=True)

        with Tracker(
            folder, val_set.variables, state.config, mode, state.step, state.run_id
        ) as tracker:
            state.run_id = tracker.run.id
            if train(state, total_steps, loaders, config, device, tracker, interrupt):
                report(model, loaders.val, device, tracker, state.step)
                print(
                    f"look at {where}: curves.png, reconstructions.png, metrics.csv, summary.json"
                )
                return 0
    script = os.path.relpath(CHAPTER / "pytorch_train.py")
    print(f"stopped after step {state.step}; continue with:")
    print(f"  uv run python {script} --resume {where}")
    return 128 + interrupt.signal_number if interrupt else 0


def train(
    state: TrainingState,
    total_steps: int,
    loaders: Loaders,
    config: Namespace,
    device: torch.device,
    tracker: Tracker,
    interrupt: GracefulInterrupt,
) -> bool:
    """Train from ``state.step`` to ``total_steps``. Returns False if the run was stopped before."""
    trainer, batch_size = config.trainer, config.data.batch_size
    last, best = (tracker.folder / "checkpoints" / name for name in ("last.pt", "best.pt"))
    # In a log file every update is a new line, so there they come rarely.
    pause = 0.5 if sys.stderr.isatty() else 10
    bar = tqdm(
        total=total_steps, initial=state.step, unit="step", mininterval=pause, dynamic_ncols=True
    )
    stop = False
    while state.step < total_steps and not stop:
        # A resumed run may begin inside an epoch; the sampler leaves out what was used already.
        epoch, steps_done = divmod(state.step, loaders.steps_per_epoch)
        loaders.sampler.set_epoch(epoch, start=steps_done * batch_size)
        started, samples = time.perf_counter(), 0
        for x, index in loaders.train:
            lr = float(state.scheduler.get_last_lr()[0])
            x, index = x.to(device), index.to(device)
            loss = train_step(state, x, index, epoch, trainer.gradient_clip_val)
            bar.update()
            samples += len(x)
            if state.step % trainer.log_every_n_steps == 0:
                speed = samples / (time.perf_counter() - started)
                metrics = {"train_loss": loss, "lr": lr, "samples_per_second": speed}
                tracker.log(state.step, epoch, metrics)
                bar.set_postfix_str(f"loss {loss:.4f}, {speed:.0f} samples/s", refresh=False)

            stop = bool(interrupt) or state.step == trainer.max_steps
            end_of_epoch = state.step % loaders.steps_per_epoch == 0
            every = trainer.checkpoint_every_n_steps
            if not end_of_epoch and (stop or (every and state.step % every == 0)):
                state.save(last)
            if stop:
                break
        if end_of_epoch:
            metrics = validate(state.model, loaders.val, device)
            tracker.log(state.step, epoch, metrics)
            scores = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
            bar.write(f"epoch {epoch + 1} of {trainer.max_epochs}: {scores}")
            is_best = metrics["val_loss"] < state.best_loss
            state.best_loss = min(metrics["val_loss"], state.best_loss)
            # The best one first: a crash in between then does both again, instead of losing one.
            if is_best:
                state.save(best)
            state.save(last)
            stop = stop or bool(interrupt)
            every = trainer.picture_every_n_epochs
            if every and (epoch + 1) % every == 0 and state.step < total_steps:
                draw(state.model, loaders.val_set, device, tracker, state.step)
    bar.close()
    return state.step == total_steps


def train_step(state: TrainingState, x: Tensor, index: Tensor, epoch: int, clip: float) -> float:
    """Take one optimiser step and return the loss.

    Raises UserError, with the weights untouched, if the loss or its gradient is not finite.
    """
    output = state.model(x, index, epoch)
    # The mean over hidden ocean elements. A batch that is all land has none and gives a loss of 0.
    loss = output.squared_error / output.valid_count.clamp(min=1)
    state.optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(state.model.parameters(), clip)
    # Clipping is no help: a norm that is NaN makes all gradients NaN, and one step all weights.
    if not torch.isfinite(loss + norm):
        raise UserError(
            f"step {state.step + 1}: the loss is {loss.item()}, the norm of its gradient "
            f"{norm.item()}; stopped before the weights changed. Lower optimizer.lr, or look for "
            "infinite values in the data"
        )
    state.optimizer.step()
    state.scheduler.step()
    state.step += 1
    return loss.item()


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
