"""Try on GPUs what the tests on processors cannot, and print what belongs into chapter 4's text.

  uv run python appendix/gpu_check.py            nine minutes at most
  uv run python appendix/gpu_check.py --quick    the same commands, small, on a processor

It uses one, two, four and eight GPUs, as many as there are. A part that fails says so, and the
others go on. appendix/output/gpu_check has the runs, and in commands.log all that was printed.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pandas as pd
import torch
import yaml
from record import hardware

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "appendix" / "output" / "gpu_check"
BF16 = {"precision": "bf16-mixed"}
FUSED = {"fused": True}
ROWS = {
    "chapter 3": {},
    "may not repeat": {"trainer": {"deterministic": False}},
    "bf16-mixed": {"trainer": BF16},
    "16-mixed": {"trainer": {"precision": "16-mixed"}, "optimizer": FUSED},
    "everything": {"trainer": BF16, "optimizer": FUSED, "model": {"compile": True}},
}
RANK_THAT_FAILS = """
import os, sys
import lightning_train
from src.run.errors import one_line_errors
if os.environ.get("LOCAL_RANK") == "1":
    lightning_train.AutoencoderModule.training_step = None
with one_line_errors():
    sys.exit(lightning_train.main())
"""


class GpuCheck:
    """The parts: each returns a table or a line, or raises.

    Args:
        quick: on a processor, with small models and few steps.
    """

    def __init__(self, quick: bool) -> None:
        self.quick = quick
        self.deadline = 0.0  # of a part, on time.monotonic()
        self.device = [f"--trainer.accelerator={'cpu' if quick else 'cuda'}"]
        if quick:
            self.device += ["--model.embed_dim=16", "--model.decoder_embed_dim=16"]
        most = 2 if quick else torch.cuda.device_count()
        self.numbers = [number for number in (1, 2, 4, 8) if number <= most]

    def run(self, folder: str, *words: str, code: int = 0) -> str:
        """What Python with these words prints in a chapter's folder; ends all its processes."""
        with (OUTPUT / "commands.log").open("a+") as log:
            print(f"\n{folder}: {' '.join(words)}", file=log, flush=True)
            start = log.tell()
            process = subprocess.Popen(
                [sys.executable, *words],
                cwd=ROOT / folder,
                env=os.environ | {"WANDB_MODE": "disabled"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(self.deadline - time.monotonic())
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            log.seek(start)
            output = log.read()
        if process.returncode != code:
            raise RuntimeError(f"{words[0]}: {output.strip().splitlines()[-1]}")
        return output

    def tests(self) -> str:
        """Those that a machine without a GPU skips."""
        names = [
            "0_setup/tests/test_model.py",
            "1_multi_gpu/tests/test_ranks.py",
            "4_model_profiling/tests/test_step.py",
        ]
        only = "test_model or gpus_with_nccl or for_a_gpu"
        options = ["-q", "-p", "no:xdist", "-o", "addopts=--import-mode=importlib"]
        output = self.run(".", "-m", "pytest", *options, "-k", only, *names)
        return output.strip().splitlines()[-1]

    def step(self) -> str:
        """The timing table of the default model, in three precisions."""
        steps = "--steps=4" if self.quick else "--steps=45"
        return self.timing("step.yaml", ROWS, steps, *self.device)

    def large_model(self) -> str:
        """The same at the size of ViT-B, with a batch that fills a GPU: MFU and memory."""
        if self.quick:
            return "needs a GPU"
        settings = ["--data.batch_size=256", "--data.num_workers=8", *self.device]
        rows = {name: ROWS[name] for name in ("chapter 3", "bf16-mixed", "everything")}
        words = ["-c", "config/vit_base.yaml", "--steps=9", "--repeats=1", *settings]
        return self.timing("large.yaml", rows, *words)

    def timing(self, file: str, rows: dict, *words: str) -> str:
        """The table that timing_benchmark.py prints."""
        if self.quick:  # a processor has no 16-mixed
            rows = {name: row for name, row in rows.items() if name != "16-mixed"}
        (OUTPUT / file).write_text(yaml.safe_dump(rows, sort_keys=False))
        command = ["timing_benchmark.py", f"--rows={OUTPUT / file}", *words]
        output = self.run("4_model_profiling", *command)
        return (
            "milliseconds" + output.partition("milliseconds")[2].rpartition("look")[0]
        )

    def devices(self) -> str:
        """On each number of GPUs, with a store that is 30 ms away: speed, waiting, losses."""
        few = ["--trainer.max_epochs=1", "--trainer.log_every_n_steps=1"]
        few += ["--data.batch_size=64", *self.device]
        raw = OUTPUT / "raw"
        output = f"--trainer.output_dir={raw}"
        self.run("0_setup", "pytorch_train.py", *few, output)
        lines = []
        for number in self.numbers:
            folder = OUTPUT / f"on_{number}"
            words = [f"--trainer.output_dir={folder}", "--trainer.strategy=ddp"]
            words = [
                "slow_network.py",
                "0.03",
                sys.executable,
                "lightning_train.py",
                *words,
            ]
            words += [f"--trainer.devices={number}", *few]
            output = self.run("3_data_pipeline", *words)
            waited = output.partition("waited ")[2].partition("\n")[0]
            metrics = losses(folder)
            speed = metrics["samples_per_second"].iloc[-1]
            difference = metrics["train_loss"] / losses(raw)["train_loss"] - 1
            lines.append(
                f"{number} of {self.numbers[-1]} devices: {speed:.0f} samples/s, waited {waited}, "
                f"losses within {difference.abs().max():.0e} of raw PyTorch's"
            )
        return "\n".join(lines)

    def rank_that_fails(self) -> str:
        """How soon all ranks end when one of them fails."""
        if self.numbers[-1] == 1:
            return "needs two GPUs"
        words = ["-c", RANK_THAT_FAILS, f"--trainer.devices={self.numbers[-1]}"]
        words += [f"--trainer.output_dir={OUTPUT / 'fails'}", *self.device]
        start = time.monotonic()
        self.run("1_multi_gpu", *words, code=1)
        return f"all ranks ended {time.monotonic() - start:.0f} s after the start"


def losses(folder: Path) -> pd.DataFrame:
    """The training rows of a run's metrics.csv."""
    metrics = pd.read_csv(folder / "run_1" / "metrics.csv", index_col="step")
    return metrics.dropna(subset="train_loss")


# Seconds at most.
PARTS = {
    "tests": 100,
    "step": 120,
    "large_model": 110,
    "devices": 130,
    "rank_that_fails": 80,
}


def main() -> int:
    """Run all parts, and print their results. Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small, on a processor")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    options = parser.parse_args()
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    check = GpuCheck(options.quick)
    name = "no GPU" if options.quick else torch.cuda.get_device_name()
    print(f"*{name}; {hardware()}.*", flush=True)
    code = 0
    for part in options.parts:
        run_part: Callable[[], str] = getattr(check, part)
        limit = PARTS[part] * (10 if options.quick else 1)
        check.deadline = time.monotonic() + limit
        try:
            result = run_part()
        # The other parts go on: a GPU is at hand for minutes.
        except (RuntimeError, OSError, subprocess.TimeoutExpired, LookupError) as error:
            result = f"FAILED: {type(error).__name__}: {error}"
            code = 1
        print(
            f"\n**{part.replace('_', ' ')}**\n\n```\n{result.strip()}\n```", flush=True
        )
    return code


if __name__ == "__main__":
    sys.exit(main())
