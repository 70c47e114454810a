"""Try on one GPU what the tests on processors cannot, and write a table of the results.

  uv run python appendix/gpu_check.py            nine minutes at most
  uv run python appendix/gpu_check.py --quick    the same commands, small, on a processor

Each part runs commands of the chapters, for so many seconds at most; where one fails, its line says
so, and the others go on. Needs no server and no network. In appendix/output/gpu_check it leaves
table.md, and commands.log with what the commands have printed.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import pandas as pd
import torch
import yaml
from process_copies import Commands, as_the_only_rank, prepare_copies

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "appendix" / "output" / "gpu_check"
STORE = OUTPUT / "store.zarr"
# In memory, so that nothing is streamed.
OCEAN = ["--data.dataset=OceanDataset"]
SMALL = ["--model.embed_dim=16", "--model.depth=1", "--model.decoder_embed_dim=16"]
LOGGED_EVERY = 12  # steps: between two of them no number may be read from the device
# What a read looks like in a trace.
READS = "Memcpy DtoH|cuda(Stream|Device|Event)Synchronize"
# Of the differences from raw PyTorch.
BOUNDS = {"Lightning": 1e-5, "by hand": 1e-5, "processor": 1e-3}


class GpuCheck(Commands):
    """The parts; each returns its result in words, or raises.

    Args:
        quick: on a processor, with small models and few steps.
    """

    def __init__(self, quick: bool) -> None:
        super().__init__(OUTPUT)
        self.quick = quick
        self.device = f"--trainer.accelerator={'cpu' if quick else 'cuda'}"
        self.small = SMALL if quick else []

    def tests(self) -> str:
        """Those that are skipped where there is no GPU."""
        names = [
            "0_setup/tests/test_model.py",
            "1_multi_gpu/tests/test_ranks.py",
            "4_model_profiling/tests/test_step.py",
        ]
        options = ["-q", "-p", "no:xdist", "-o", "addopts=--import-mode=importlib"]
        only = "on_a_gpu or gpus_with_nccl or (test_model and cuda)"
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
        for name, bound in BOUNDS.items():
            difference = (losses[name] / losses["raw PyTorch"] - 1).abs().max()
            if not difference < bound:
                raise RuntimeError(f"{name} differs by {difference:.1e}")
            results.append(f"{name} {difference:.0e}")
        return "largest difference from raw PyTorch: " + ", ".join(results)

    def model_flops(self) -> str:
        """FLOPs and MFU of a model of ViT-B's size, in each precision, and not deterministic."""
        settings = ["--config=config/vit_base.yaml", "--steps=20"]
        # A batch that fills the GPU, and workers that make it in time.
        settings += ["--data.batch_size=256", "--data.num_workers=4"]
        if self.quick:
            settings = [*OCEAN, "--steps=8"]
        # A processor may only emulate bfloat16, and takes long then.
        mixed = [] if self.quick else ["--precision=bf16-mixed"]
        ways: dict[str, tuple[str, list[str]]] = {
            "float32": ("highest", []),
            "TF32": ("high", []),
            "bfloat16": ("highest", mixed),
            "not deterministic": ("highest", [*mixed, "--trainer.deterministic=false"]),
        }
        if self.quick:  # the same command four times
            del ways["TF32"], ways["bfloat16"]
        results = []
        for name, (float32, words) in ways.items():
            command = ["count_step.py", *settings, *words, self.device, *self.small]
            before = partial(torch.set_float32_matmul_precision, float32)
            output = self.run("4_model_profiling", *command, before=before)
            share = output.partition("MFU ")[2].split()[0]
            results.append(f"{name} {share}")
        flops = output.partition("counted ")[2].split()[0]
        return f"{flops} GFLOP a step; MFU: " + ", ".join(results)

    def ladder(self) -> str:
        """How many times as fast each rung is as the first version."""
        folder = OUTPUT / "ladder"
        steps = "--steps=2" if self.quick else "--steps=20"
        command = ["step_ladder.py", steps, "--repeats=1", f"--save-dir={folder}"]
        self.run("4_model_profiling", *command, *OCEAN, self.device, *self.small)
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
        events = pd.DataFrame(json.loads(trace.read_text())["traceEvents"])
        name = events["name"].fillna("")
        is_step = name.str.contains("run_training_batch")
        steps = events[is_step & (events["cat"] == "user_annotation")].sort_values("ts")
        # The first one here is the third of the training.
        ten_steps = steps.iloc[LOGGED_EVERY - 2 : LOGGED_EVERY + 8]
        end = (ten_steps["ts"] + ten_steps["dur"]).iloc[-1]
        is_between = events["ts"].between(ten_steps["ts"].iloc[0], end)
        found = name[is_between & name.str.match(READS)]
        if len(found):
            raise RuntimeError(f"{len(found)} reads: {sorted(set(found))}")
        # A processor's trace has no copies to a host.
        return "not measurable on a processor" if self.quick else "none in ten steps"

    def build_store(self) -> None:
        """A cube in a folder, and its packed copy."""
        if not STORE.exists():
            place = [f"--url={STORE}", "--chunk=[12,64,64]"]
            months = "--months=24" if self.quick else "--months=120"
            self.run("3_data_pipeline", "build_store.py", "cube", *place, months)
            self.run("3_data_pipeline", "build_store.py", "pack", *place)

    def streaming(self) -> str:
        """Samples a second from a store in a folder, and the share of waiting for them."""
        self.build_store()
        folder = OUTPUT / "streaming"
        command = ["timing_benchmark.py", "--epochs=1", f"--save-dir={folder}"]
        command += [*stream_settings(self.quick), self.device, *self.small]
        self.run("4_model_profiling", *command)
        summary = yaml.safe_load((folder / "timing_summary.yaml").read_text())
        times = summary["milliseconds"]
        speed = 1e3 * 32 / times["total"]["mean"]
        return f"{speed:.0f} samples/s, {times['data']['share']:.1%} of it waiting"

    def precisions(self) -> str:
        """Chapter 5's comparison."""
        stride = "[2,2,60]" if self.quick else "[1,1,30]"
        settings = [*OCEAN, f"--data.dataset.train_stride={stride}", *self.small]
        command = ["compare_precision.py", *settings, self.device]
        lines = self.run("5_whats_next", *command).splitlines()
        rows = [line.split() for line in lines if "x" in line and ":" not in line]
        return "; ".join(" ".join(row) for row in rows)

    def real(self) -> str:
        """config/real.yaml on one device: DDP, compiled, bfloat16, fused; what is recompiled."""
        self.build_store()
        settings = ["--trainer.cloud_storage_path=none", "--trainer.wandb=disabled"]
        settings += ["--trainer.max_epochs=2", "--data.batch_size=32", self.device]
        settings += [f"--trainer.output_dir={OUTPUT / 'real'}", "--trainer.devices=1"]
        if self.quick:
            settings += [*SMALL, "--model.num_heads=4", "--model.decoder_num_heads=4"]
        periods = stream_settings(self.quick)[-2:]
        words = ["-c", "config/real.yaml", f"--data.dataset.url={STORE}", *periods]
        command = ["lightning_train.py", *words, *settings]
        before = partial(torch._logging.set_logs, recompiles=True)
        output = self.run("5_whats_next", *command, before=before)
        return f"trained two epochs; {output.count('Recompiling f')} recompilations"


def stream_settings(quick: bool) -> list[str]:
    """Windows of one month of the store, 32 in a batch; the last two are the periods."""
    stride = "[1,64,64]" if quick else "[1,16,16]"
    train = '["1900-01","1901-07"]' if quick else '["1900-01","1905-12"]'
    val = '["1901-09","1901-12"]' if quick else '["1907-01","1909-12"]'
    settings = ["--model.patch_size=[1,8,8]", "--data.batch_size=32"]
    settings += [f"--data.dataset.url={STORE}", "--data.dataset.packed=true"]
    settings += ["--data.dataset.window=[1,64,64]"]
    settings += ["--data.dataset.val_stride=[1,64,64]"]
    settings += [f"--data.dataset.train_stride={stride}"]
    settings += [f"--data.dataset.train_period={train}"]
    return [*settings, f"--data.dataset.val_period={val}"]


# Seconds at most.
PARTS = {
    "tests": 110,
    "same_curve": 50,
    "reads": 30,
    "real": 90,
    "streaming": 40,
    "precisions": 30,
    "model_flops": 90,
    "ladder": 80,
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
    for name in options.parts:
        part: Callable[[], str] = getattr(check, name)
        limit = 10 * PARTS[name] if options.quick else PARTS[name]
        check.deadline = time.monotonic() + limit
        try:
            result = part()
        except Exception as error:  # whatever it is, the other parts go on
            result = f"FAILED: {type(error).__name__}: {error}"
        lines.append(f"| {name.replace('_', ' ')} | {result} |")
        print(lines[-1], flush=True)
    (OUTPUT / "table.md").write_text("\n".join(lines) + "\n")
    return int(any("| FAILED" in line for line in lines))


def hardware(quick: bool) -> str:
    """What the table was measured on."""
    device = platform.processor() if quick else torch.cuda.get_device_name()
    versions = f"torch {torch.__version__}, lightning {lightning.__version__}"
    return f"{device}, {os.cpu_count()} cores; Python {platform.python_version()}, {versions}"


if __name__ == "__main__":
    sys.exit(main())
