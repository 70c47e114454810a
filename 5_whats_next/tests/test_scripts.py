"""The study, the preflight, the campaign of kills; and secrets, which no run may write anywhere."""

import csv
import math
from unittest import mock

import fsspec
import lightning_train
import preflight
import pytest
import torch
import yaml
from kill_campaign import Case, campaign
from src.config import CHAPTER
from src.data.pytorch_dataset import OceanDataset
from src.data.s3_server import connect
from src.environment import load_environment
from src.errors import UserError
from src.model.pytorch_model import MaskedAutoencoder

from tests.fault_proxy import Fault, FaultyProxy
from tests.runs import TINY, call

OCEAN = f"-c={CHAPTER}/tests/ocean.yaml"
study = pytest.importorskip("study", reason="needs uv sync --group study")


@pytest.mark.slow
def test_three_cases_of_the_campaign():
    """Broken by: no metrics.csv in the cloud; a step of its own in the checkpoint."""
    cases = [Case(5, 1, 0, "disk"), Case(4, 1, 2, "cloud"), Case(6, 2, 0, "cloud")]
    assert all(campaign(cases).values())


def test_a_score_compares_models():
    """Whatever their patches, and without what is hidden. Broken by: their own masks."""
    dataset, scores = OceanDataset("val"), []
    for patch in ((3, 4, 4), (3, 8, 8)):
        model = MaskedAutoencoder(dataset.sample_shape, patch_size=patch)
        torch.nn.init.zeros_(model.decoder.head.weight)
        scores.append(study.score(model, dataset))
    assert scores[0] == scores[1] > 0.5
    x, index = dataset[0][0][None], torch.tensor([0])
    hidden = study.hidden_blocks(x, index)
    assert hidden.float().mean() == 0.75
    changed = torch.where(hidden, x + 1, x)
    model = MaskedAutoencoder(dataset.sample_shape)
    seen = [model(v.masked_fill(hidden, math.nan), index).prediction for v in (x, changed)]
    assert seen[0].equal(seen[1])


@pytest.mark.slow
def test_a_study_goes_on_and_writes_the_best(monkeypatch, tmp_path):
    """Broken by: no load_if_exists; a trial that is worse and not pruned."""
    monkeypatch.setattr("short_run.CHAPTER", tmp_path)
    never = study.optuna.pruners.ThresholdPruner(upper=0, n_warmup_steps=2)
    for trials in (2, 1):
        call(monkeypatch, OCEAN, f"--trials={trials}", "--trainer.max_epochs=2", script=study)
        pruner = never if trials == 2 else None
        monkeypatch.setattr(study.optuna.pruners, "MedianPruner", lambda **_: pruner)  # noqa: B023
    folder = tmp_path / "output" / "study" / "small"
    with (folder / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["state"] for row in rows] == ["COMPLETE", "COMPLETE", "PRUNED"]
    best = yaml.safe_load((folder / "best.yaml").read_text())
    assert str(best["optimizer"]["lr"]) == rows[0]["lr"]
    assert {path.name for path in folder.glob("*.png")} == {"intermediate_values.png", "slice.png"}
    words = [f"-c={folder}/best.yaml", f"--trainer.output_dir={tmp_path}", "--trainer.max_steps=1"]
    words += ["--data.dataset=OceanDataset", "--trainer.wandb=disabled"]
    with pytest.raises(SystemExit, match="0"):
        call(monkeypatch, *words, script=lightning_train)


def test_preflight(monkeypatch, capsys):
    """Broken by: no limit in attempt (the stall); `and` for `or` in sample."""
    monkeypatch.setattr(preflight, "LIMITS", {"cloud": 2})
    connect()  # to start the server would take longer
    assert call(monkeypatch, TINY, "--price_per_hour=20", script=preflight) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == preflight.CHECKS
    assert all(line.startswith("ok") for line in lines)
    assert "price" in next(line for line in lines if " step " in line)
    wrong = ["--trainer.devices=3", "--trainer.precision=16-mixed", "--data.num_workers=2"]
    monkeypatch.setattr("shutil.disk_usage", lambda _: mock.Mock(free=1))
    monkeypatch.setattr("src.data.pytorch_dataset.DummyDataset.__getitem__", lambda *_: (X, 0))
    with FaultyProxy(connect()["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("EMBEDDED_S3_ENDPOINT", proxy.url)
        proxy.faults = [Fault("stall", math.inf)]
        assert call(monkeypatch, TINY, *wrong, script=preflight) == 1
    failed = {line.split()[1] for line in capsys.readouterr().out.splitlines() if "FAIL" in line}
    assert failed == {"precision", "batch", "sample", "memory", "step", "cloud"}


X = torch.full((2, 4, 8, 8), 50.0)


def test_secrets_are_written_nowhere(monkeypatch, tmp_path, capfd):
    """Broken by: the environment in config.yaml; a key in the address of an error."""
    server = connect()
    names = ["AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "CLOUD_STORAGE_KEY"]
    secrets = [f"{number}planted{'0' * 32}" for number in range(3)]
    for name, secret in zip(names, secrets, strict=True):
        monkeypatch.setenv(name, secret)
    runs = f"s3://embedded/{tmp_path.name}"
    words = [f"--trainer.output_dir={tmp_path}", "--trainer.wandb=offline"]
    words += [f"--trainer.cloud_storage_path={runs}", "--trainer.run_name=run"]
    call(monkeypatch, TINY, *words, script=lightning_train)
    monkeypatch.setattr("src.data.store.connect", lambda: server | {names[0]: secrets[0]})
    with pytest.raises(UserError, match=f"^{runs}/other: PermissionError") as caught:
        call(monkeypatch, TINY, *words, "--trainer.run_name=other", script=lightning_train)
    secrets += [server["AWS_SECRET_ACCESS_KEY"], server["AWS_ACCESS_KEY_ID"]]
    keys = {"key": server["AWS_ACCESS_KEY_ID"], "secret": server["AWS_SECRET_ACCESS_KEY"]}
    cloud = fsspec.filesystem("s3", endpoint_url=server["AWS_ENDPOINT_URL"], **keys)
    texts = [str(caught.value).encode(), "".join(capfd.readouterr()).encode()]
    texts += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    texts += cloud.cat(cloud.find(runs)).values()
    assert len(texts) > 15
    assert not [secret for secret in secrets for text in texts if secret.encode() in text]


def test_the_environment_comes_from_a_file(monkeypatch, tmp_path, capsys):
    """Broken by: no find_dotenv(usecwd=True): the file beside the module would be taken."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SET", "before")
    monkeypatch.delenv("NEW", raising=False)
    (tmp_path / ".env").write_text("SET=file\nNEW=file\n")
    (tmp_path / ".env").chmod(0o644)
    load_environment()
    assert (preflight.os.environ["SET"], preflight.os.environ.pop("NEW")) == ("before", "file")
    assert "chmod 600" in capsys.readouterr().out
