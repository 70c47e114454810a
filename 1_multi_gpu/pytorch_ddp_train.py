"""Train on several devices in plain PyTorch: what Lightning does for you, written out.

uv run torchrun --standalone --local-addr 127.0.0.1 --nproc-per-node 2 pytorch_ddp_train.py
"""

import math
import os
import sys
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from jsonargparse import Namespace
from tqdm import tqdm

from src.data.loaders import Loaders
from src.model.pytorch_model import MaskedAutoencoder
from src.run.config import CHAPTER, choose_device, parse_config
from src.run.distributed import RankLoaders, max_over_ranks, sum_over_ranks
from src.run.errors import UserError, one_line_errors
from src.run.evaluation import error_sums, to_scores
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
    if "RANK" not in os.environ or device.type == "mps":
        raise UserError("start this script with torchrun, on CPUs or on CUDA devices")
    gpu = None
    backend = "gloo"
    if device.type == "cuda":
        gpu = device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(gpu)
        backend = "nccl"
    # 30 minutes: the others wait while one downloads. device_id: NCCL would guess it from the rank,
    # and could be wrong.
    dist.init_process_group(backend, timeout=timedelta(minutes=30), device_id=gpu)
    rank = dist.get_rank()
    if rank > 0:  # rank 0 speaks for all
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115  until this process ends
    set_seed(seed, settings.deterministic)

    # Data, model, optimiser.
    if os.environ["LOCAL_RANK"] == "0":  # the main process of each machine
        Loaders(**vars(config.data))  # opens the data, to download what is missing
    dist.barrier()
    loaders = RankLoaders(rank, dist.get_world_size(), **vars(config.data), seed=seed)
    sample_shape = loaders.train_set.sample_shape
    model = MaskedAutoencoder(sample_shape, **vars(config.model), seed=seed).to(device)
    total_steps = settings.max_epochs * loaders.steps_per_epoch
    optimizer, scheduler = make_optimizer(model, total_steps, **vars(config.optimizer))
    state = TrainingState(model, optimizer, scheduler)

    # A resumed run goes on in its own folder, a new one gets a new folder: none is overwritten.
    folder = Path(config.resume or ".")
    if config.resume:
        state.load(folder / "checkpoints" / "last.pt")
    elif rank == 0:
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

    tracker = None  # rank 0 writes
    if rank == 0:
        # Also after a resume, which may have changed some: the next one reads them from here.
        save_settings(folder, resolved)
        tracker = Tracker(folder, settings.wandb, state.step, state.run_id)
        state.run_id = tracker.run.id
    with closing(StopRequest()) as stop:
        train(state, total_steps, loaders, settings, tracker, stop)
    dist.barrier()  # rank 0 may still write a checkpoint
    dist.destroy_process_group()
    if stop.number or state.step < total_steps:
        print(f"stopped after step {state.step}; go on with --resume {where}")
        return 128 + stop.number if stop.number else 0
    if tracker:
        with_pictures = settings.picture_every_n_epochs > 0
        report(model, loaders.val_set, tracker, state.step, with_pictures)
    return 0


def train(
    state: TrainingState,
    total_steps: int,
    loaders: RankLoaders,
    settings: Namespace,
    tracker: Tracker | None,
    stop: StopRequest,
) -> None:
    """Train to ``total_steps``, or until a signal or ``settings.max_steps``."""
    device = next(state.model.parameters()).device
    # Copies from pinned memory (loaders.py) need not be waited for.
    is_pinned = device.type == "cuda"
    # Each backward pass averages the gradients over the ranks.
    parallel = torch.nn.parallel.DistributedDataParallel(state.model)
    checkpoints = tracker.folder / "checkpoints" if tracker else Path()
    checkpoint_every = settings.checkpoint_every_n_steps or total_steps
    picture_every = settings.picture_every_n_epochs or math.inf
    # The loader asks for the step when an epoch begins: after a resume it may be inside of one.
    train_loader = loaders.train_loader(lambda: state.step)
    val_loader = loaders.val_loader()
    # Rank 0 has a bar, if it writes to a terminal (tqdm's None).
    bar = tqdm(total=total_steps, initial=state.step, disable=None if tracker else True)

    is_stopping = False
    while state.step < total_steps and not is_stopping:
        epoch = state.step // loaders.steps_per_epoch
        first_step = state.step
        start = time.perf_counter()

        for batch in train_loader:
            # Forward. The samples' numbers and the epoch decide which patches are hidden.
            x, index = (part.to(device, non_blocking=is_pinned) for part in batch)
            output = parallel(x, index, epoch)

            # Loss: the mean over the hidden ocean values of all ranks, and not the mean of their
            # means: one rank may have much land. So the gradients of the ranks have to be added.
            # DDP averages them, which divides by the number of ranks: multiply by it.
            count = sum_over_ranks(output.valid_count).clamp(min=1)
            loss = output.squared_error / count * dist.get_world_size()

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
                    "train_loss": (sum_over_ranks(output.squared_error) / count).item(),
                    "lr": lr,
                    "samples_per_second": samples / (time.perf_counter() - start),
                }
                if tracker:
                    tracker.log(state.step, epoch, row)
                bar.set_postfix(row)

            # Validate at the end of an epoch. best.pt is written before last.pt: after a crash
            # between the two, the resumed run repeats the last steps and writes best.pt again. In
            # the other order it would be lost.
            is_epoch_end = state.step % loaders.steps_per_epoch == 0
            if is_epoch_end:
                sums = sum_over_ranks(error_sums(state.model, val_loader))
                scores = to_scores(sums, loaders.val_set)
                text = ", ".join(f"{key} {value:.4f}" for key, value in scores.items())
            if is_epoch_end and tracker:
                tracker.log(state.step, epoch, scores)
                bar.write(f"epoch {epoch + 1} of {settings.max_epochs}: {text}")
                if scores["val_loss"] < state.best_loss:
                    state.best_loss = scores["val_loss"]
                    state.save(checkpoints / "best.pt")

            # Save. == and not >=: config.yaml keeps max_steps; a run resumed there goes on.
            # One rank alone may have got a signal. All stop by the answer, which is the same on all
            # of them: a signal during the exchange counts after the next step.
            number = max_over_ranks(stop.number)
            stop.number = stop.number or number
            is_stopping = number > 0 or state.step == settings.max_steps
            is_due = is_epoch_end or is_stopping or state.step % checkpoint_every == 0
            if tracker and is_due:
                state.save(checkpoints / "last.pt")
            if tracker and is_epoch_end and (epoch + 1) % picture_every == 0:
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
