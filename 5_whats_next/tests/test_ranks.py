"""Two real processes: what they share, what they must not share, and how they fail together.
They run rank_checks.py and rank_failures.py, which write what each rank saw.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from src.evaluation import score_baselines, validate
from src.lightning_ranks import early_rank, seed_of_rank
from src.model.pytorch_model import MaskedAutoencoder
from torch.utils.data import DataLoader

from tests import rank_failures
from tests.lightning_runs import run_on_two_ranks
from tests.rank_checks import MODEL, SCRIPTS, SHAPE, SIZES, val_set
from tests.runs import reference_run, rows
from tests.test_cifar10 import write_archive


def test_generators_of_ranks_and_seeds_differ():
    """A generator on the CPU takes the low 32 bits of its seed, and ignores the others."""
    seeds = [seed_of_rank(seed, rank) for seed in range(50) for rank in range(50)]
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    first = {torch.randint(2**62, (), generator=generator).item() for generator in generators}
    assert len(first) == len(seeds)


@pytest.mark.parametrize("name", ["LOCAL_RANK", "SLURM_LOCALID"])
def test_early_rank(monkeypatch, name):
    for variable in ("LOCAL_RANK", "SLURM_LOCALID"):
        monkeypatch.delenv(variable, raising=False)
    assert early_rank() == 0
    monkeypatch.setenv(name, "3")
    assert early_rank() == 3


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Iterator[rank_failures.Archive]:
    path = tmp_path_factory.mktemp("archive") / "archive"
    with rank_failures.serve(path, write_archive(path)) as served:
        yield served


@pytest.fixture(scope="module")
def healthy(tmp_path_factory, archive) -> rank_failures.Ranks:
    folder = tmp_path_factory.mktemp("healthy")
    (folder / "download").mkdir()
    ranks = rank_failures.launch("tests.rank_checks", folder, archive)
    assert ranks.code == 0, ranks.printed
    return ranks


@pytest.fixture(scope="module")
def failing(tmp_path_factory, archive) -> rank_failures.Ranks:
    folder = tmp_path_factory.mktemp("failing")
    (folder / "archive").write_bytes(archive.path.read_bytes())
    return rank_failures.launch("tests.rank_failures", folder, archive)


def of_ranks(ranks: rank_failures.Ranks, *keys: str) -> list:
    """What each rank wrote under ``keys``."""
    found = ranks.seen
    for key in keys:
        found = [of_rank[key] for of_rank in found]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_one_rank_downloads_and_all_read(healthy, archive, script):
    assert archive.asked.count(f"/whole/{script.replace(' ', '-')}") == 1
    first, second = of_ranks(healthy, "download", script)
    assert first == second
    folder = healthy.folder / "download"
    assert (folder / script).read_bytes() == archive.path.read_bytes()
    assert sorted(path.name for path in folder.iterdir()) == sorted(SCRIPTS)  # nothing temporary


@pytest.mark.slow
@pytest.mark.parametrize("cause", rank_failures.LINES)
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_failure_ends_all_ranks_with_one_line(failing, script, cause):
    told, silent = of_ranks(failing, "ends", script, cause)
    assert silent == 1
    rank_failures.assert_one_line(silent, told, cause)
    assert not rank_failures.left_over(failing.folder / script / cause)


@pytest.mark.slow
def test_a_failure_by_hand_ends_the_launch(failing):
    rank_failures.assert_one_line(failing.code, failing.printed, "404")


@pytest.mark.slow
def test_a_failure_in_lightning_train_ends_the_launch(archive, tmp_path):
    arguments = rank_failures.arguments_of("lightning", "cut", tmp_path, archive.url, archive.md5)
    ended = run_on_two_ranks("lightning_train.py", *arguments)
    rank_failures.assert_one_line(*ended, "cut")
    assert not rank_failures.left_over(tmp_path)


@pytest.mark.slow
def test_ranks_share_a_failure(failing):
    first, second = of_ranks(failing, "failures")
    assert first["[]"] == second["[]"] == []
    assert first["[0]"] == ["failure 0 (rank 0 of 2)", True]
    assert first["[1]"] == ["failure 1 (rank 1 of 2)", True]
    assert first["[0, 1]"] == ["failure 0", True]
    told = {failing: [found[0], False] for failing, found in first.items() if found}
    assert second == {"[]": [], **told}  # the same, but rank 0 reports it


@pytest.mark.slow
def test_sums(healthy):
    for rank, (before, after, totals) in enumerate(of_ranks(healthy, "sums")):
        assert before == after == [[rank + 1, (rank + 1) * 2**-40], (rank + 1) * (2**60 + 1)]
        assert totals == [[3, 3 * 2**-40], 3 * (2**60 + 1)]


def scores_of_one_process(size: int) -> dict[str, dict[str, float]]:
    torch.manual_seed(0)
    model, device = MaskedAutoencoder(SHAPE, **MODEL), torch.device("cpu")
    loader = DataLoader(val_set(size), 4)
    found = validate(model, loader, device)
    baselines = score_baselines(model, loader, device)
    return {"lightning": found, "by hand": found, "masked autoencoder": found, **baselines}


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_each_validation_sample_counts_once(healthy, size):
    for found in of_ranks(healthy, "scores", str(size)):
        for name, expected in scores_of_one_process(size).items():
            assert found[name] == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_each_sample_is_predicted_once(healthy, size):
    folder = healthy.folder / f"predict {size}" / "run_1"
    parts = [xr.load_dataset(folder / f"predictions-{rank}.nc") for rank in (0, 1)]
    assert sorted(np.concatenate([part["sample"] for part in parts])) == list(range(size))
    for part in parts:
        for sample in part["sample"].values:
            found, x = part.sel(sample=sample), val_set(size)[int(sample)][0].numpy()
            seen = found["hidden"].values == 0
            np.testing.assert_array_equal(found["noise_0"].values[seen], x[0][seen])


@pytest.mark.slow
def test_seeds_differ_between_ranks_and_workers(healthy, failing):
    """And are the same in another start."""
    seen = of_ranks(healthy, "draws")
    for kind in (0, 1):  # the seed of torch, and the dataset's own generator
        assert len({worker[kind] for rank in seen for worker in rank}) == 4
    assert seen == of_ranks(failing, "draws")


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_ranks_begin_with_the_same_weights(healthy, script):
    first, second = of_ranks(healthy, "training", script, "weights")
    assert len(first) == 1
    assert first == second


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_rank_zero_alone_writes(healthy, script):
    assert of_ranks(healthy, "training", script, "wandb") == [1, 0]
    first, second = of_ranks(healthy, "training", script, "printed")
    assert second == ""
    assert first.count("epoch 3 of 3") == first.count("output    ") == 1
    output = healthy.folder / script
    assert [path.name for path in output.iterdir()] == ["run_1"]
    assert len(list(output.rglob("offline-run-*"))) == len(list(output.rglob("metrics.csv"))) == 1


def schedule(folder: Path) -> list[tuple[str, str, np.float32]]:
    """Step, epoch and learning rate of each step."""
    return [(r["step"], r["epoch"], np.float32(r["lr"])) for r in rows(folder) if r["lr"]]


@pytest.mark.slow
def test_same_steps_and_learning_rates_as_one_process(healthy, monkeypatch, tmp_path):
    reference = schedule(reference_run(monkeypatch, tmp_path))
    assert [int(step) for step, *_ in reference] == list(range(1, 13))
    for script in SCRIPTS:
        assert schedule(healthy.folder / script / "run_1") == reference


@pytest.mark.slow
def test_ranks_share_the_batch(healthy):
    printed, _ = of_ranks(healthy, "training", "lightning", "printed")
    assert "steps 0 to 12, 8 samples each: 4 on each rank" in printed
