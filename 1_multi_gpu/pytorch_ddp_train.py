"""Train on several devices in plain PyTorch: chapter 0's loop with the lines that DDP needs.

It leaves out the progress bar, signals, the best checkpoint and the final scores. To see what is
new, compare it with pytorch_train.py beside it, which is chapter 0's.

uv run torchrun --standalone --local-addr 127.0.0.1 --nproc-per-node 2 pytorch_ddp_train.py
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from src.data.loaders import Loaders
from src.model.pytorch_model import MaskedAutoencoder
from src.run.checkpoint import TrainingState, check_finite
from src.run.config import CHAPTER, TrainerSettings, choose_device, parse_config
from src.run.distributed import sum_over_ranks
from src.run.errors import UserError, one_line_errors
from src.run.evaluation import as_text, model_errors, to_scores
from src.run.optim import clip_gradients, make_optimizer
from src.run.seed import set_seed
from src.run.tracking import Tracker, new_run_folder

CLASSES = (MaskedAutoencoder, Loaders, TrainerSettings)


def main() -> None:
    """Read the settings, join the other ranks, train; rank 0 writes for all."""
    config, resolved = parse_config(__doc__, CLASSES)
    settings = config.trainer
    seed = config.seed_everything
    if settings.max_steps > 0 or settings.checkpoint_every_n_steps:
        raise UserError("this script saves at the end of an epoch alone")

    # torchrun tells each process its number, and where the others are.
    if "RANK" not in os.environ:
        raise UserError("start this script with torchrun")
    device = choose_device(settings.accelerator)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    set_seed(seed, settings.deterministic)

    # Data, model, optimiser. Each rank gets its share of every batch.
    loaders = Loaders(**vars(config.data), seed=seed, rank=rank, world_size=world_size)
    sample_shape = loaders.train_set.sample_shape
    model = MaskedAutoencoder(sample_shape, **vars(config.model), seed=seed).to(device)
    total_steps = settings.max_epochs * loaders.steps_per_epoch
    optimizer, scheduler = make_optimizer(model, total_steps, **vars(config.optimizer))
    state = TrainingState(model, optimizer, scheduler, resolved)
    # Each backward pass averages the gradients over the ranks.
    ddp_model = DistributedDataParallel(model)

    # All ranks read the checkpoint, and rank 0 alone writes: the others would write the same.
    if config.resume:
        state.load(config.resume / "checkpoints/last.ckpt")
    tracker = None
    if rank == 0:
        folder = config.resume or new_run_folder(CHAPTER / settings.output_dir)
        print(f"output    {os.path.relpath(folder)}")
        tracker = Tracker(folder, settings.wandb, resolved, state.rows, state.run_id)
        state.run_id = tracker.run.id

    # The loader asks for the step when an epoch begins: after a resume it may be inside of one.
    train_loader = loaders.train_loader(lambda: state.step)
    val_loader = loaders.val_loader()

    while state.step < total_steps:
        epoch = state.step // loaders.steps_per_epoch

        for batch in train_loader:
            # Forward. The samples' numbers and the epoch decide which patches are hidden.
            x, index = (part.to(device) for part in batch)
            output = ddp_model(x, index, epoch)

            # Loss: the mean over the hidden ocean values of all ranks. The ranks' gradients have to
            # be added; DDP averages them, which divides by the number of ranks: multiply by it.
            own = torch.stack([output.squared_error, output.valid_count])
            error, count = sum_over_ranks(own)
            count = count.clamp(min=1)
            loss = output.squared_error / count * world_size

            # Backward.
            optimizer.zero_grad()
            loss.backward()
            clip_gradients(model, settings.gradient_clip_val)

            # Step.
            lr = scheduler.get_last_lr()[0]
            optimizer.step()
            scheduler.step()
            state.step += 1

            # Log. To read a number is to wait for the GPU, so not in each step.
            if tracker and state.step % settings.log_every_n_steps == 0:
                check_finite(model, state.step)
                row = {"train_loss": (error / count).item(), "lr": lr}
                tracker.log(state.step, epoch, row)

        # Validate at the end of an epoch: each rank its share.
        errors = sum_over_ranks(model_errors(model, val_loader))
        scores = to_scores(errors, loaders.val_set)
        if tracker:
            tracker.log(state.step, epoch, scores)
            print(f"epoch {epoch + 1}: {as_text(scores)}", flush=True)
            state.save(tracker.last)
    dist.barrier()  # a rank that ends at once can crash in gloo's threads
    dist.destroy_process_group()


if __name__ == "__main__":
    with one_line_errors():
        main()
