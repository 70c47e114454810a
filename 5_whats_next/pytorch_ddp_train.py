"""Train on several devices in plain PyTorch: what Lightning does for you, written out.

  uv run torchrun --standalone --nproc-per-node 2 pytorch_ddp_train.py --trainer.accelerator cpu

Needs torchrun, which starts this script once for each device and tells each process its rank. It
takes the settings of pytorch_train.py. To keep it short it leaves out what chapter 0 and
lightning_train.py have: pictures of every epoch, checkpoints inside an epoch, Ctrl-C that saves.
"""

import os
import sys
from functools import partial

import torch
import torch.distributed as dist
import yaml
from jsonargparse import Namespace
from src.checkpoint import TrainingState, checkpoint_to_resume
from src.config import CHAPTER, parse_config, run_folder
from src.data.lightning_sampler import EvaluationSlice, TrainBatches
from src.data.loaders import Loaders, make_loaders
from src.data.look_ahead import look_ahead
from src.data.orders import order_of
from src.device import choose_device, describe_device
from src.errors import UserError
from src.evaluation import SquaredError
from src.lightning_errors import one_line_errors
from src.lightning_ranks import seed_of_rank, shared_fate
from src.model.pytorch_model import MaskedAutoencoder
from src.optim import make_optimizer
from src.report import report
from src.reproducibility import set_seed
from src.tracking import Tracker, new_run_folder, wandb_mode
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


def main() -> int:
    """Read the settings, meet the other processes, train. Returns the exit code."""
    config, resolved = parse_config(__doc__)
    if "RANK" not in os.environ:
        raise UserError("RANK is not set; start this script with torchrun, as its --help shows")
    device = choose_device(config.trainer.accelerator)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))  # one GPU for each process
        torch.cuda.set_device(device)
    # The processes find each other at MASTER_ADDR:MASTER_PORT, which torchrun has set.
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        set_seed(config.seed_everything, config.trainer.deterministic)  # the same on all ranks
        train(config, resolved, device, build_data(config))
    finally:
        dist.destroy_process_group()
    return 0


def build_data(config: Namespace) -> Loaders:
    """Build the datasets: first on one process of each machine, which may download."""
    local_rank = int(os.environ["LOCAL_RANK"])
    for turn in (0, 1):
        # The end of shared_fate is the barrier: all ranks meet there, or fail there together.
        with shared_fate():
            if min(local_rank, 1) == turn:
                loaders = make_loaders(**vars(config.data), seed=config.seed_everything)
            if config.data.batch_size % dist.get_world_size():
                raise UserError(
                    f"data.batch_size: {config.data.batch_size} samples cannot be shared by "
                    f"{dist.get_world_size()} devices"
                )
    return loaders


def train(config: Namespace, resolved: str, device: torch.device, loaders: Loaders) -> None:
    """Train to the end; rank 0 writes what there is to write."""
    trainer, rank, world_size = config.trainer, dist.get_rank(), dist.get_world_size()
    shape, seed = loaders.train_set.sample_shape, config.seed_everything
    model = MaskedAutoencoder(shape, **vars(config.model), seed=seed).to(device)
    total_steps = trainer.max_epochs * loaders.steps_per_epoch
    optimizer, scheduler = make_optimizer(model, total_steps, **vars(config.optimizer))
    state = TrainingState(model, optimizer, scheduler, yaml.safe_load(resolved))
    if config.resume:
        state.load(checkpoint_to_resume(config.resume))
    # From here on every backward pass averages the gradients over the ranks, while it still runs.
    parallel = DistributedDataParallel(model)
    tracker = open_tracker(config, resolved, state, loaders) if rank == 0 else None
    if rank == 0:
        print(f"device    {describe_device(device)}, {world_size} ranks, {dist.get_backend()}")

    batches = TrainBatches(
        len(loaders.train_set),
        seed,
        config.data.batch_size,
        rank,
        world_size,
        step=lambda: state.step,
        order=order_of(loaders.train_set),
    )
    own = EvaluationSlice(len(loaders.val_set), rank, world_size)
    new_loader = partial(
        DataLoader,
        num_workers=loaders.train.num_workers,
        multiprocessing_context=loaders.train.multiprocessing_context,
        worker_init_fn=loaders.train.worker_init_fn,
        generator=torch.Generator().manual_seed(seed_of_rank(seed, rank)),
    )
    coming = look_ahead(batches, loaders.train_set, loaders.train.num_workers)
    train_loader = new_loader(loaders.train_set, batch_sampler=coming)
    val_loader = new_loader(loaders.val_set, batch_size=config.data.batch_size, sampler=own)
    while state.step < total_steps:
        epoch = state.step // loaders.steps_per_epoch
        for x, index in train_loader:
            lr = scheduler.get_last_lr()[0]
            output = parallel(x.to(device), index.to(device), epoch)
            # How many valid elements have all ranks together? A mean of the ranks' means would give
            # a rank with much land the same weight as one with none.
            count = output.valid_count.clone()
            dist.all_reduce(count)
            # DDP will divide the sum of the gradients by world_size; this takes it back.
            loss = output.squared_error * world_size / count.clamp(min=1)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), trainer.gradient_clip_val)
            optimizer.step()
            scheduler.step()
            state.step += 1
            if state.step % trainer.log_every_n_steps == 0:
                mean = loss.detach() / world_size
                dist.all_reduce(mean)
                if tracker:
                    tracker.log(state.step, epoch, {"train_loss": mean.item(), "lr": float(lr)})
        metrics = validate(model, val_loader, loaders, device)
        if tracker:
            tracker.log(state.step, epoch, metrics)
            scores = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
            print(f"epoch {epoch + 1} of {trainer.max_epochs}: {scores}", flush=True)
            state.save(tracker.folder / "checkpoints" / "last.pt")
    if tracker:
        with tracker:
            report(model, loaders.val, device, tracker, state.step)
    dist.barrier()  # rank 0 is busy; who leaves now takes the process group down


def open_tracker(
    config: Namespace, resolved: str, state: TrainingState, loaders: Loaders
) -> Tracker:
    """The run's folder and its files: on rank 0 only, or all ranks would write the same ones."""
    mode = wandb_mode(config.trainer.wandb)
    if config.resume:
        folder = run_folder(config.resume)
    else:
        folder = new_run_folder(CHAPTER / config.trainer.output_dir)
        (folder / "config.yaml").write_text(resolved)
    names = loaders.val_set.variables
    tracker = Tracker(folder, names, state.config, mode, state.step, state.run_id)
    state.run_id = tracker.run.id
    print(f"output    {os.path.relpath(folder)}")
    return tracker


@torch.no_grad()
def validate(
    model: nn.Module, loader: DataLoader, loaders: Loaders, device: torch.device
) -> dict[str, float]:
    """The scores over all ranks' samples: each counts once, also where a round is filled up."""
    error = SquaredError(loaders.val_set)
    sums = torch.zeros(2, dtype=torch.float64)
    model.eval()
    for x, index in loader:
        foreign = index % dist.get_world_size() != dist.get_rank()
        x = x.masked_fill(foreign[:, None, None, None, None], torch.nan).to(device)
        output = model(x, index.to(device))
        sums += torch.tensor([output.squared_error.item(), output.valid_count.item()])
        error.update(output.prediction, x, output.hidden)
    model.train()
    for total in (sums, error.total, error.count):
        reduced = total.to(device)
        dist.all_reduce(reduced)
        total.copy_(reduced)
    return {"val_loss": float(sums[0] / sums[1]), **error.rmse()}


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
