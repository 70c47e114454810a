"""Which device to train on, and what it is called."""

import platform
from pathlib import Path

import torch

from src.errors import UserError


def choose_device(accelerator: str) -> torch.device:
    """The device for auto, cuda, mps or cpu. Raises UserError if it is not there."""
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    names = [name for name, there in available.items() if there]
    if accelerator == "auto":
        return torch.device(names[0])
    if accelerator not in names:
        raise UserError(
            f"trainer.accelerator: there is no {accelerator} device here; "
            f"allowed: auto, {', '.join(names)}"
        )
    return torch.device(accelerator)


def describe_device(device: torch.device) -> str:
    """One line for the log: what computes, and with which PyTorch."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{processor_name()}, {torch.get_num_threads()} threads"
    return f"{device.type} ({name}), torch {torch.__version__}"


def processor_name() -> str:
    """The processor's name as the operating system knows it."""
    cpuinfo = Path("/proc/cpuinfo")  # Linux; platform.processor() is often empty there
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
