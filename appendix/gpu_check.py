"""Try on GPUs what the tests on processors cannot, and print what belongs into chapter 4's text.

  uv run python appendix/gpu_check.py            nine minutes at most
  uv run python appendix/gpu_check.py --quick    the same on a processor, with one process

It uses one, two, four and eight GPUs, as many as there are. A part that fails says so, and the
others go on. appendix/output/gpu_check has the runs, and in commands.log all that was printed.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
import torch
from record import hardware

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "appendix/output/gpu_check"
QUICK_ROWS = ROOT / "appendix/tests/rows.yaml"
# Seconds at most.
PARTS = {
    "tests": 100,
    "step": 130,
    "large_model": 130,
    "devices": 110,
    "rank_that_fails": 60,
}
SMALL = [
    "--trainer.accelerator=cpu",
    "--model.embed_dim=16",
    "--model.decoder_embed_dim=16",
]
GPU_TESTS = "test_model or gpus_with_nccl or for_a_gpu"
TEST_FILES = [
    "0_setup/tests/test_model.py",
    "1_multi_gpu/tests/test_ranks.py",
    "4_model_profiling/tests/test_step.py",
]
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
        quick: on a processor, with a small model.
    """

    def __init__(self, quick: bool) -> None:
        self.quick = quick
        self.deadline = 0.0  # of a part, on time.monotonic()
        self.device = SMALL if quick else ["--trainer.accelerator=cuda"]
        self.most = 1 if quick else torch.cuda.device_count()

    def run(self, folder: str, *words: str) -> str:
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
            output = log.read().strip()
        if process.returncode:
            raise RuntimeError(f"{words[0]}: {output.splitlines()[-1]}")
        return output

    def tests(self) -> str:
        """Those that a machine without a GPU skips."""
        words = ["-m", "pytest", "-q", "-n0", "-k", GPU_TESTS, *TEST_FILES]
        return self.run(".", *words).splitlines()[-1]

    def step(self) -> str:
        """The timing table of the default model, in three precisions."""
        if self.quick:
            return self.timing("--steps=2", "--repeats=1")
        return self.timing("--steps=45", "--repeats=2")

    def large_model(self) -> str:
        """The same at the size of ViT-B, with a batch that fills a GPU: MFU and memory."""
        if self.quick:
            return "needs a GPU"
        batch = ["--data.batch_size=256", "--data.num_workers=8"]
        large = ["-c", "config/vit_base.yaml", *batch]
        return self.timing("--steps=9", "--repeats=1", *large)

    def timing(self, *words: str) -> str:
        """The table that timing_benchmark.py prints."""
        rows = QUICK_ROWS if self.quick else "benchmark_configs/gpu.yaml"
        words = ("timing_benchmark.py", f"--rows={rows}", *words, *self.device)
        output = self.run("4_model_profiling", *words)
        return output.partition("a step; ")[2].rpartition("\nlook")[0]

    def devices(self) -> str:
        """On each number of GPUs, with a store that is 30 ms away: speed, waiting, losses."""
        raw = self.curve("0_setup", "raw", "pytorch_train.py")
        lines = []
        for number in [n for n in (1, 2, 4, 8) if n <= self.most]:
            words = ["slow_network.py", "0.03", sys.executable, "lightning_train.py"]
            words += ["--trainer.strategy=ddp", f"--trainer.devices={number}"]
            rows = self.curve("3_data_pipeline", f"on_{number}", *words)
            waited = (OUTPUT / "commands.log").read_text().rpartition("waited ")[2]
            difference = (rows["train_loss"] / raw["train_loss"] - 1).abs().max()
            lines.append(
                f"{number} of {self.most} devices: "
                f"{rows['samples_per_second'].iloc[-1]:.0f} samples/s, "
                f"waited {waited.splitlines()[0]}, "
                f"losses within {difference:.0e} of raw PyTorch's"
            )
        return "\n".join(lines)

    def curve(self, chapter: str, name: str, *words: str) -> pd.DataFrame:
        """The training rows of an epoch's metrics.csv."""
        settings = ["--trainer.max_epochs=1", "--trainer.log_every_n_steps=1"]
        settings += ["--data.batch_size=64", f"--trainer.output_dir={OUTPUT / name}"]
        self.run(chapter, *words, *settings, *self.device)
        rows = pd.read_csv(OUTPUT / name / "run_1" / "metrics.csv", index_col="step")
        return rows.dropna(subset="train_loss")

    def rank_that_fails(self) -> str:
        """How soon all ranks end when one of them fails."""
        if self.most == 1:
            return "needs two GPUs"
        words = ["-c", RANK_THAT_FAILS, f"--trainer.devices={self.most}"]
        start = time.monotonic()
        output = f"--trainer.output_dir={OUTPUT / 'fails'}"
        with suppress(RuntimeError):
            self.run("1_multi_gpu", *words, output, *self.device)
        return f"all ranks ended {time.monotonic() - start:.0f} s after the start"


def main() -> int:
    """Run all parts, and print their results. Returns the exit code."""
    quick = "--quick" in sys.argv
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    check = GpuCheck(quick)
    name = "no GPU" if quick else torch.cuda.get_device_name()
    print(f"*{name}; {hardware()}.*", flush=True)
    code = 0
    for part, limit in PARTS.items():
        check.deadline = time.monotonic() + limit * (10 if quick else 1)
        try:
            result = getattr(check, part)()
        # The other parts go on: a GPU is at hand for minutes.
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            result = f"FAILED: {type(error).__name__}: {error}"
            code = 1
        print(f"\n**{part.replace('_', ' ')}**\n\n```\n{result}\n```", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
