"""The train script, run as a reader runs it."""

import contextlib
import csv
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import pytorch_train
import torch
import yaml
from src.config import CHAPTER
from src.errors import UserError

SCRIPT = CHAPTER / "pytorch_train.py"
# Twelve steps of a tiny model on noise: four in each of three epochs.
TINY = [
    "--data.dataset=DummyDataset",
    "--data.dataset.sample_shape=[2,4,8,8]",
    "--data.dataset.num_samples=34",
    "--data.dataset.num_val_samples=34",
    "--data.batch_size=8",
    "--model.patch_size=[2,4,4]",
    "--model.embed_dim=16",
    "--model.decoder_embed_dim=16",
    "--trainer.max_epochs=3",
    "--trainer.log_every_n_steps=1",
    "--trainer.accelerator=cpu",
]


@pytest.fixture(autouse=True)
def no_wandb(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")


def train(monkeypatch, output: Path, *arguments: str) -> int:
    """Run main() in this process, which saves the seconds that importing torch takes."""
    given = [*TINY, f"--trainer.output_dir={output}", *arguments]
    monkeypatch.setattr(sys, "argv", ["pytorch_train.py", *given])
    return pytorch_train.main()


def resume(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["pytorch_train.py", *arguments])
    return pytorch_train.main()


def rows(folder: Path) -> list[dict[str, str]]:
    """metrics.csv without the one column that is a measurement."""
    with (folder / "metrics.csv").open(newline="") as file:
        return [
            {k: v for k, v in r.items() if k != "samples_per_second"} for r in csv.DictReader(file)
        ]


def weights(folder: Path, name: str = "last.pt") -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoints" / name, weights_only=True)["model"]


def assert_same_run(a: Path, b: Path) -> None:
    """The same losses, learning rates and validation scores, and the same weights: to the bit."""
    assert rows(a) == rows(b)
    for one, other in zip(weights(a).values(), weights(b).values(), strict=True):
        assert one.equal(other)


@pytest.fixture
def reference(monkeypatch, tmp_path) -> Path:
    """An uninterrupted run of twelve steps."""
    assert train(monkeypatch, tmp_path / "reference") == 0
    return tmp_path / "reference" / "run_1"


def test_leaves_everything_behind(reference):
    names = {path.name for path in reference.iterdir()}
    assert {"metrics.csv", "summary.json", "config.yaml", "checkpoints"} <= names
    assert {"reconstructions.png", "curves.png"} <= names
    assert {path.name for path in (reference / "checkpoints").iterdir()} == {"last.pt", "best.pt"}
    table = rows(reference)
    assert [int(row["step"]) for row in table if row["train_loss"]] == list(range(1, 13))
    assert [int(row["step"]) for row in table if row["val_loss"]] == [4, 8, 12]
    assert set(json.loads((reference / "summary.json").read_text())["validation"]) == {
        "masked autoencoder",
        "inverse distance",
        "visible mean",
    }


def test_resuming_a_finished_run_reports_again(monkeypatch, reference, capsys):
    table = rows(reference)
    capsys.readouterr()
    assert resume(monkeypatch, f"--resume={reference}") == 0
    assert rows(reference) == table
    printed = capsys.readouterr().out
    for expected in ("cpu (", "torch", "34 training", "validation RMSE of noise_1 (1)"):
        assert expected in printed


def test_noise_cannot_be_learned(reference):
    """The loss of white noise stays near 1; below it, hidden values would be leaking."""
    losses = [float(row["val_loss"]) for row in rows(reference) if row["val_loss"]]
    assert all(0.97 < loss < 1.3 for loss in losses)


def test_best_checkpoint_has_the_lowest_loss(reference):
    losses = {int(r["step"]): float(r["val_loss"]) for r in rows(reference) if r["val_loss"]}
    best = torch.load(reference / "checkpoints/best.pt", weights_only=True)
    assert best["global_step"] == min(losses, key=losses.get)
    assert best["best_loss"] == min(losses.values())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_same_seed_same_bits(monkeypatch, tmp_path, reference, num_workers):
    assert train(monkeypatch, tmp_path, f"--data.num_workers={num_workers}") == 0
    assert_same_run(reference, tmp_path / "run_1")


def test_other_seed_other_curve(monkeypatch, tmp_path, reference):
    assert train(monkeypatch, tmp_path, "--seed_everything=1") == 0
    ours, theirs = (
        [row["train_loss"] for row in rows(folder) if row["train_loss"]]
        for folder in (tmp_path / "run_1", reference)
    )
    assert all(a != b for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("stop", [1, 4, 6, 11])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_resumed_run_is_identical(monkeypatch, tmp_path, reference, stop, num_workers):
    """Stopped at the first step, between epochs, inside one and before the end."""
    workers = f"--data.num_workers={num_workers}"
    assert train(monkeypatch, tmp_path, f"--trainer.max_steps={stop}", workers) == 0
    folder = tmp_path / "run_1"
    assert torch.load(folder / "checkpoints/last.pt", weights_only=True)["global_step"] == stop
    assert resume(monkeypatch, f"--resume={folder}", "--trainer.max_steps=-1") == 0
    assert_same_run(reference, folder)
    assert json.loads((folder / "summary.json").read_text()) == json.loads(
        (reference / "summary.json").read_text()
    )


def test_resume_from_a_named_checkpoint(monkeypatch, tmp_path, reference):
    """Rows after the checkpoint are dropped, and computed again to the same values."""
    folder = tmp_path / "run_1"
    assert train(monkeypatch, tmp_path, "--trainer.max_steps=6") == 0
    kept = folder / "checkpoints" / "kept.pt"
    shutil.copy(folder / "checkpoints" / "last.pt", kept)
    assert resume(monkeypatch, f"--resume={folder}", "--trainer.max_steps=9") == 0
    with (folder / "metrics.csv").open("a") as file:
        file.write("10,2,0.1")  # half a row, as a killed process leaves it
    assert resume(monkeypatch, f"--resume={kept}", "--trainer.max_steps=-1") == 0
    assert_same_run(reference, folder)


def test_runs_do_not_overwrite_each_other(monkeypatch, tmp_path):
    for _ in range(2):
        assert train(monkeypatch, tmp_path, "--trainer.max_steps=1") == 0
    assert {path.name for path in tmp_path.iterdir()} == {"run_1", "run_2"}


def start(tmp_path: Path, *arguments: str, **settings) -> subprocess.Popen:
    """The script as a process of its own."""
    command = [sys.executable, str(SCRIPT), *TINY, f"--trainer.output_dir={tmp_path}", *arguments]
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} | settings
    return subprocess.Popen(command, **settings)


LONG = ["--data.dataset.num_samples=4000", "--trainer.max_epochs=2"]  # 1000 steps


def wait_for_step(process: subprocess.Popen, folder: Path, step: int) -> None:
    """Return as soon as ``step`` is in metrics.csv."""
    while process.poll() is None:
        if (folder / "metrics.csv").exists():
            logged = [row["step"] for row in rows(folder) if row["step"]]
            if logged and int(logged[-1]) >= step:
                return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)  # rather than spin: the training needs the processor
    raise AssertionError(f"ended before step {step}:\n{process.communicate()[0]}")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_saves_and_ends(tmp_path, number):
    """Ctrl-C goes to every process of the terminal, workers included; nothing is left behind."""
    process = start(tmp_path, *LONG, "--data.num_workers=2", start_new_session=True)
    folder = tmp_path / "run_1"
    wait_for_step(process, folder, 20)
    os.killpg(process.pid, number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number, output
    assert "Traceback" not in output
    assert "continue with: pytorch_train.py --resume" in output
    saved = torch.load(folder / "checkpoints/last.pt", weights_only=True)["global_step"]
    assert 20 <= saved < 1000
    assert f"stopped after step {saved}" in output
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.slow
def test_killed_run_resumes_to_the_same_bits(monkeypatch, tmp_path):
    """SIGKILL in the middle of an epoch: nothing can be saved then, the last checkpoint counts."""
    shorter = ["--data.dataset.num_samples=400", "--trainer.checkpoint_every_n_steps=7"]
    assert train(monkeypatch, tmp_path / "straight", *shorter) == 0
    folder = tmp_path / "killed" / "run_1"
    process = start(tmp_path / "killed", *shorter)
    wait_for_step(process, folder, 60)
    process.kill()
    process.communicate()
    assert resume(monkeypatch, f"--resume={folder}") == 0
    assert_same_run(tmp_path / "straight" / "run_1", folder)


@pytest.mark.slow
def test_default_run(tmp_path, monkeypatch):
    """The command of the README: the scores that the text states, beside the three baselines."""
    monkeypatch.delenv("WANDB_MODE")
    command = [sys.executable, str(SCRIPT), f"--trainer.output_dir={tmp_path}"]
    # Started from a folder that is not the chapter's, without a network and without an account.
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    folder = tmp_path / "run_1"
    summary = json.loads((folder / "summary.json").read_text())["validation"]
    rmse = {name: score["rmse_surface_temperature"] for name, score in summary.items()}
    ours = rmse.pop("masked autoencoder")
    assert set(rmse) == {"inverse distance", "climatology", "visible mean"}
    assert ours < 0.60
    assert ours < min(rmse.values())
    stated = json.loads((CHAPTER / "results/default.json").read_text())["summary"]["validation"]
    assert ours == pytest.approx(stated["masked autoencoder"]["rmse_surface_temperature"], abs=0.03)
    for name, value in rmse.items():
        assert value == pytest.approx(stated[name]["rmse_surface_temperature"], abs=0.002)
        assert f"{name:<20}{value:8.3f}" in done.stdout
    for name in ("reconstructions.png", "curves.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    assert list((folder / "wandb").glob("offline-run-*/*.wandb"))
    resolved = yaml.safe_load((folder / "config.yaml").read_text())
    assert resolved["model"]["mask_ratio"] == 0.75
    assert "time left" in done.stderr or "step/s" in done.stderr


BAD_INPUT = {
    "unknown key": (["--model.mask_ration=0.5"], "mask_ration"),
    "wrong type": (["--data.batch_size=many"], "data.batch_size"),
    "patch size": (["--model.patch_size=[3,4,4]"], "model.patch_size: [3, 4, 4]"),
    "mask ratio": (["--model.mask_ratio=1.7"], "model.mask_ratio: 1.7"),
    "batch size": (["--data.batch_size=35"], "data.batch_size: 35 does not fit the 34"),
    "unknown dataset": (["--data.dataset=Cifar"], "CIFAR10Dataset"),
    "no archive": (["--data.dataset=CIFAR10Dataset", "--data.dataset.path=no.gz"], "no file no.gz"),
    "nothing valid": (
        ["--data.dataset=OceanDataset", "--data.dataset.train_months=[0,0]"],
        "train_m",
    ),
    "learning rate": (["--optimizer.lr=-1"], "optimizer.lr: -1"),
    "nothing to resume": (["--resume=nowhere"], "nowhere is neither the folder of a run"),
    "no epoch": (["--trainer.max_epochs=0"], "trainer.max_epochs: 0 is too small"),
    "workers": (
        ["--data.num_workers=-1"],
        "data.num_workers: -1 is too small; allowed: 0 and more",
    ),
}


@pytest.mark.parametrize(("arguments", "expected"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input(monkeypatch, tmp_path, arguments, expected):
    """One clear line that names the key, and nothing is written."""
    with pytest.raises(UserError) as caught:
        train(monkeypatch, tmp_path / "output", *arguments)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "output").exists()


def test_bad_input_exit_code(monkeypatch):
    """As a script: Python prints the text of SystemExit on stderr and exits with code 1."""
    monkeypatch.setattr(sys, "argv", ["pytorch_train.py", "--model.mask_ratio=1.7"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert str(caught.value.code).startswith("error: model.mask_ratio: 1.7")


def test_unknown_wandb_mode(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "sometimes")
    with pytest.raises(UserError, match=r"WANDB_MODE: 'sometimes' is unknown; allowed: offline"):
        train(monkeypatch, tmp_path / "output")
    assert not (tmp_path / "output").exists()


def missing_device() -> str:
    return "mps" if torch.cuda.is_available() else "cuda"


def test_device_that_is_not_there(monkeypatch, tmp_path):
    with pytest.raises(
        UserError, match=rf"trainer.accelerator: there is no {missing_device()} dev"
    ):
        train(monkeypatch, tmp_path / "output", f"--trainer.accelerator={missing_device()}")
    assert not (tmp_path / "output").exists()


def test_unwritable_output_folder(monkeypatch, tmp_path):
    """A file stands where the folder should be; this also stops root, who may write anywhere."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"trainer.output_dir: cannot write to .*file/output"):
        train(monkeypatch, tmp_path / "file" / "output")


def test_read_only_output_folder(monkeypatch, tmp_path):
    tmp_path.chmod(0o500)
    if os.access(tmp_path, os.W_OK):
        pytest.skip("this user may write to read-only folders")
    with pytest.raises(UserError, match=r"trainer.output_dir: cannot write to"):
        train(monkeypatch, tmp_path / "output")


def test_resume_with_another_model(monkeypatch, tmp_path, reference):
    before = (reference / "checkpoints" / "last.pt").read_bytes()
    with pytest.raises(UserError, match=r"model.embed_dim is 16 in .*last.pt, but 32 in this"):
        resume(monkeypatch, f"--resume={reference}", "--model.embed_dim=32")
    assert (reference / "checkpoints" / "last.pt").read_bytes() == before


def test_resume_from_a_truncated_checkpoint(monkeypatch, tmp_path, reference):
    path = reference / "checkpoints" / "last.pt"
    path.write_bytes(path.read_bytes()[:5000])
    table = rows(reference)
    with pytest.raises(UserError, match=r"last.pt is truncated or not a checkpoint"):
        resume(monkeypatch, f"--resume={reference}")
    assert rows(reference) == table
    assert resume(monkeypatch, f"--resume={reference / 'checkpoints' / 'best.pt'}") == 0


def test_non_finite_loss_stops_before_the_weights_change(monkeypatch, tmp_path):
    with pytest.raises(UserError, match=r"step \d+: the loss is .*Lower optimizer.lr"):
        train(monkeypatch, tmp_path, "--optimizer.lr=1e30", "--trainer.checkpoint_every_n_steps=1")
    saved = weights(tmp_path / "run_1")
    assert all(torch.isfinite(tensor).all() for tensor in saved.values())
