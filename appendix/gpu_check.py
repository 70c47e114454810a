"""Try on one GPU what the tests on processors cannot, and write a table of the results.

  uv run python appendix/gpu_check.py            nine minutes at most
  uv run python appendix/gpu_check.py --quick    the same commands, small, on a processor

Each part runs commands of the chapters, for so many seconds at most; where one fails, its line says
so, and the others go on. Needs no server and no network. In appendix/output/gpu_check it leaves
table.md, and commands.log with what the commands have printed.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import runpy
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import pandas as pd
import torch
import yaml

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "appendix" / "output" / "gpu_check"
STORE = OUTPUT / "store.zarr"
# In memory, so that nothing is streamed.
OCEAN = ["--data.dataset=OceanDataset"]
SMALL = ["--model.embed_dim=16", "--model.depth=1", "--model.decoder_embed_dim=16"]
LOGGED_EVERY = 12  # steps: between two of them no number may be read from the device
# What a read looks like in a trace.
READS = ("Memcpy DtoH", "cudaStreamSynchronize", "cudaDeviceSynchronize")


# A command runs in a copy of a process that has imported the libraries, which takes up to 20 s.
COPIES = multiprocessing.get_context("forkserver")
LIBRARIES = ["lightning.pytorch", "wandb", "s3fs", "xarray", "distributed"]
LIBRARIES += ["matplotlib.pyplot"]


def prepare_copies() -> None:
    """Say what the process imports that is copied; before the first copy."""
    # A process that has used CUDA cannot be copied: this looks for a GPU without it.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    COPIES.set_forkserver_preload(LIBRARIES)


def as_the_only_rank() -> None:
    """What torchrun would set."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def run_command(
    folder: Path, words: Sequence[str], before: Callable[[], Any] | None, log: Path
) -> None:
    """In a process of its own: what ``python WORDS`` would do in this folder."""
    os.setsid()  # so that all its processes can be ended together
    with log.open("wb") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    os.chdir(folder)
    os.environ["WANDB_MODE"] = "disabled"
    if before:
        before()
    sys.path.insert(0, str(folder))
    if words[0] == "-m":
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        # The whole path: processes that the script starts import it.
        runpy.run_path(str(folder / words[0]), run_name="__main__")


class GpuCheck:
    """The parts; each returns its result in words, or raises.

    Args:
        quick: on a processor, with small models and few steps.
    """

    def __init__(self, quick: bool) -> None:
        self.quick = quick
        self.device = f"--trainer.accelerator={'cpu' if quick else 'cuda'}"
        self.small = SMALL if quick else []
        self.deadline = 0.0  # of the part that runs, on time.monotonic()

    def run(
        self, chapter: str, *words: str, before: Callable[[], Any] | None = None
    ) -> str:
        """What a command prints; it runs in the chapter's folder, and after ``before``."""
        log = OUTPUT / "command.log"
        log.write_bytes(b"")
        process = COPIES.Process(
            target=run_command, args=(ROOT / chapter, words, before, log)
        )
        process.start()
        group: Any = process.pid
        process.join(self.deadline - time.monotonic())
        timed_out = process.is_alive()
        # With the processes that it has started: they would take the GPU from the next part.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        process.kill()  # it may not have begun a group yet
        process.join()
        output = log.read_text()
        with (OUTPUT / "commands.log").open("a") as commands:
            print(f"{chapter}: {' '.join(words)}\n{output}", file=commands)
        last_line = " ".join(output.splitlines()[-1:])
        if timed_out:
            raise TimeoutError(f"{words[0]}: {last_line}")
        if process.exitcode:
            raise RuntimeError(last_line)
        return output

    def tests(self) -> str:
        """Those that are skipped where there is no GPU."""
        names = [
            "1_multi_gpu/tests/test_ranks.py",
            "4_model_profiling/tests/test_step.py",
        ]
        options = ["-q", "-p", "no:xdist", "-o", "addopts=--import-mode=importlib"]
        only = "on_a_gpu or gpus_with_nccl"
        output = self.run(".", "-m", "pytest", *options, "-k", only, *names)
        return output.splitlines()[-1]

    def same_curve(self) -> str:
        """The first steps of raw PyTorch, of Lightning, of DDP by hand, and of a processor."""
        ways = {
            "raw PyTorch": ["pytorch_train.py", self.device],
            "Lightning": ["lightning_train.py", self.device],
            "by hand": ["pytorch_ddp_train.py", self.device],
            "processor": ["pytorch_train.py", "--trainer.accelerator=cpu"],
        }
        steps = 4 if self.quick else 50
        settings = [f"--trainer.max_steps={steps}", "--trainer.log_every_n_steps=1"]
        losses = {}
        for name, words in ways.items():
            folder = OUTPUT / name
            output = f"--trainer.output_dir={folder}"
            before = as_the_only_rank if name == "by hand" else None
            command = [*words, *settings, *self.small, output]
            self.run("1_multi_gpu", *command, before=before)
            metrics = pd.read_csv(folder / "run_1" / "metrics.csv", index_col="step")
            losses[name] = metrics["train_loss"].dropna()
        results = []
        for name, bound in (
            ("Lightning", 1e-5),
            ("by hand", 1e-5),
            ("processor", 1e-3),
        ):
            difference = (losses[name] / losses["raw PyTorch"] - 1).abs().max()
            if not difference < bound:
                raise RuntimeError(f"{name} differs by {difference:.1e}")
            results.append(f"{name} {difference:.0e}")
        return "largest difference from raw PyTorch: " + ", ".join(results)

    def model_flops(self) -> str:
        """MFU of a model of the size of ViT-B, in each precision, with and without determinism."""
        settings = ["--config=config/vit_base.yaml", "--steps=20"]
        # A batch that fills the GPU, and workers that make it in time.
        settings += ["--data.batch_size=256", "--data.num_workers=4"]
        if self.quick:
            settings = [*OCEAN, "--steps=8"]
        results = []
        bfloat16 = ["--precision=bf16-mixed"]
        for name, float32, words in (
            ("float32", "highest", []),
            ("TF32", "high", []),
            ("bfloat16", "highest", bfloat16),
            (
                "not deterministic",
                "highest",
                [*bfloat16, "--trainer.deterministic=false"],
            ),
        ):
            command = ["count_step.py", *settings, *words, self.device, *self.small]
            before = partial(torch.set_float32_matmul_precision, float32)
            output = self.run("4_model_profiling", *command, before=before)
            share = output.partition("MFU ")[2].split()[0]
            results.append(f"{name} {share}")
        return "MFU: " + ", ".join(results)

    def ladder(self) -> str:
        """How many times as fast each rung is as the first version."""
        folder = OUTPUT / "ladder"
        steps = "--steps=2" if self.quick else "--steps=20"
        options = [steps, "--repeats=1", f"--save-dir={folder}"]
        command = ["step_ladder.py", *options, *OCEAN, self.device, *self.small]
        self.run("4_model_profiling", *command)
        rows = json.loads((folder / "ladder.json").read_text())["rows"]
        return ", ".join(f"{name} {row['times']:.2f}" for name, row in rows.items())

    def reads(self) -> str:
        """How often a number is read from the device in ten steps between two logged ones."""
        folder = ROOT / "4_model_profiling" / "output" / "profiler" / "config"
        options = ["--profilers=pytorch", f"--steps={2 * LOGGED_EVERY}"]  # all but two
        every = f"--trainer.log_every_n_steps={LOGGED_EVERY}"
        command = ["profiler.py", *options, *OCEAN, every, self.device, *self.small]
        self.run("4_model_profiling", *command)
        (trace,) = folder.glob("profiler_logs/*.trace.json")
        events = json.loads(trace.read_text())["traceEvents"]
        steps = []
        for event in events:
            is_step = "run_training_batch" in event.get("name", "")
            if is_step and event["cat"] == "user_annotation":
                steps.append(event)
        steps.sort(key=lambda event: event["ts"])
        # The first one here is the third of the training.
        ten_steps = steps[LOGGED_EVERY - 2 : LOGGED_EVERY + 8]
        start = ten_steps[0]["ts"]
        end = ten_steps[-1]["ts"] + ten_steps[-1]["dur"]
        found = []
        for event in events:
            is_between = start <= event.get("ts", 0) <= end
            if is_between and event["name"].startswith(READS):
                found.append(event["name"])
        if found:
            raise RuntimeError(f"{len(found)} reads: {sorted(set(found))}")
        # A processor's trace has no copies to a host.
        return "not measurable on a processor" if self.quick else "none in ten steps"

    def build_store(self) -> None:
        """A cube in a folder, and its packed copy."""
        if STORE.exists():
            return
        months = "24" if self.quick else "120"
        place = ["--url", str(STORE), "--chunk", "[12,64,64]"]
        self.run(
            "3_data_pipeline", "build_store.py", "cube", *place, "--months", months
        )
        self.run("3_data_pipeline", "build_store.py", "pack", *place)

    def streaming(self) -> str:
        """Samples a second from a store in a folder, and the share of waiting for them."""
        self.build_store()
        folder = OUTPUT / "streaming"
        options = ["--epochs=1", f"--save-dir={folder}"]
        command = ["timing_benchmark.py", *options, *stream_settings(self.quick)]
        self.run("4_model_profiling", *command, self.device, *self.small)
        summary = yaml.safe_load((folder / "timing_summary.yaml").read_text())
        table = summary["milliseconds"]
        speed = 1e3 * 32 / table["total"]["mean"]
        return f"{speed:.0f} samples/s, {table['data']['share']:.1%} of it waiting"

    def precisions(self) -> str:
        """Chapter 5's comparison."""
        turns = ["--turns=1", *OCEAN, self.device, *self.small]
        output = self.run("5_whats_next", "compare_precision.py", *turns)
        lines = [
            line for line in output.splitlines() if "x" in line and ":" not in line
        ]
        return "; ".join(" ".join(line.split()) for line in lines)

    def real(self) -> str:
        """config/real.yaml on one device: DDP, compiled, bfloat16, fused; what is recompiled."""
        self.build_store()
        settings = ["--trainer.devices=1", "--trainer.run_name=null"]
        settings += ["--trainer.cloud_storage_path=none", "--trainer.wandb=disabled"]
        settings += ["--trainer.max_epochs=2", "--data.batch_size=32", self.device]
        settings += [f"--trainer.output_dir={OUTPUT / 'real'}"]
        if self.quick:
            settings += [*SMALL, "--model.num_heads=4", "--model.decoder_num_heads=4"]
        periods = stream_settings(self.quick)[-2:]
        words = ["-c", "config/real.yaml", f"--data.dataset.url={STORE}", *periods]
        command = ["lightning_train.py", *words, *settings]
        before = partial(torch._logging.set_logs, recompiles=True)
        output = self.run("5_whats_next", *command, before=before)
        count = output.count("Recompiling function")
        return f"trained two epochs; {count} recompilations"


def stream_settings(quick: bool) -> list[str]:
    """Windows of one month of the store, 32 in a batch; the last two are the periods."""
    train = '["1900-01","1901-07"]' if quick else '["1900-01","1905-12"]'
    val = '["1901-09","1901-12"]' if quick else '["1907-01","1909-12"]'
    dataset = {
        "url": STORE,
        "packed": "true",
        "window": "[1,64,64]",
        "train_stride": "[1,64,64]" if quick else "[1,16,16]",
        "val_stride": "[1,64,64]",
        "train_period": train,
        "val_period": val,
    }
    settings = ["--model.patch_size=[1,8,8]", "--data.batch_size=32"]
    return settings + [
        f"--data.dataset.{key}={value}" for key, value in dataset.items()
    ]


# Seconds at most.
PARTS = {
    "tests": 110,
    "same_curve": 50,
    "reads": 30,
    "real": 90,
    "streaming": 40,
    "precisions": 30,
    "model_flops": 90,
    "ladder": 100,
}


def main() -> int:
    """Run all parts, and write the table. Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small, on a processor")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    options = parser.parse_args()
    prepare_copies()
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    check: Any = GpuCheck(options.quick)
    lines = [f"{hardware(options.quick)}\n", "| part | result |", "|---|---|"]
    failed = False
    for name in options.parts:
        part: Callable[[], str] = getattr(check, name)
        limit = 10 * PARTS[name] if options.quick else PARTS[name]
        check.deadline = time.monotonic() + limit
        try:
            result = part()
        except Exception as error:  # whatever it is, the other parts go on
            failed = True
            result = f"FAILED: {type(error).__name__}: {error}"
        lines.append(f"| {name.replace('_', ' ')} | {result} |")
        print(lines[-1], flush=True)
    (OUTPUT / "table.md").write_text("\n".join(lines) + "\n")
    return int(failed)


def hardware(quick: bool) -> str:
    """What the table was measured on."""
    device = platform.processor() if quick else torch.cuda.get_device_name()
    versions = f"torch {torch.__version__}, lightning {lightning.__version__}"
    return f"{device}, {os.cpu_count()} cores; Python {platform.python_version()}, {versions}"


if __name__ == "__main__":
    sys.exit(main())
