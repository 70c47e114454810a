"""Which samples each rank gets: together they are the batch of a single process."""

import pytest
from src.data.lightning_datamodule import FieldDataModule
from src.data.lightning_sampler import EvaluationSlice, TrainBatches
from src.data.pytorch_dataset import DummyDataset
from src.data.sampler import epoch_order

SAMPLES, BATCH = 50, 8  # six steps of an epoch; two samples are left over


def batches(step: int = 0, rank: int = 0, world_size: int = 1) -> list[list[int]]:
    """What one rank trains on, from a step to the end of its epoch."""
    return list(TrainBatches(SAMPLES, 3, BATCH, rank, world_size, step=lambda: step))


def interleaved(parts: tuple[list[int], ...]) -> list[int]:
    """One sample of each rank in turn."""
    return [index for one_of_each in zip(*parts, strict=True) for index in one_of_each]


@pytest.mark.parametrize("step", [0, 1, 5, 6, 20])
@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_ranks_share_each_global_batch(world_size, step):
    """No sample twice and none left out, at the start of an epoch and inside one."""
    ranks = [batches(step, rank, world_size) for rank in range(world_size)]
    together = [interleaved(parts) for parts in zip(*ranks, strict=True)]
    assert together == batches(step)
    assert all(len(set(batch)) == BATCH for batch in together)


def test_one_process_has_chapter_0s_order():
    order = epoch_order(SAMPLES, 3, 0)
    assert batches() == [order[first : first + BATCH] for first in range(0, 48, BATCH)]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_each_epoch_is_another_permutation(world_size):
    epochs = []
    for epoch in range(3):
        ranks = [batches(6 * epoch, rank, world_size) for rank in range(world_size)]
        epochs.append([index for rank in ranks for batch in rank for index in batch])
    assert all(len(set(epoch)) == 48 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert batches() != list(TrainBatches(SAMPLES, 4, BATCH, 0, 1, step=lambda: 0))


@pytest.mark.parametrize("done", range(6))
def test_starts_at_any_step(done):
    """Where a resumed run goes on; its later epochs are whole."""
    assert batches(12 + done) == batches(12)[done:]


def test_step_is_asked_when_the_epoch_begins():
    """A resumed Trainer has built the sampler before it knows its step."""
    step = 0
    sampler = TrainBatches(SAMPLES, 3, BATCH, 0, 1, step=lambda: step)
    step = 9
    assert list(sampler) == batches(9)
    assert len(list(sampler)) == 3


@pytest.mark.parametrize("step", [0, 4])
def test_length_is_that_of_the_whole_epoch(step):
    """Lightning counts the batches of a resumed epoch from the first on."""
    assert len(TrainBatches(SAMPLES, 3, BATCH, 1, 2, step=lambda: step)) == 6


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("num_samples", [1, 2, 3, 7, 8, 17])
def test_every_sample_is_evaluated_once(num_samples, world_size):
    """Odd numbers, and fewer samples than ranks: equally many each, and none counts twice."""
    slices = [EvaluationSlice(num_samples, rank, world_size) for rank in range(world_size)]
    ranks = [list(of_rank) for of_rank in slices]
    assert {len(rank) for rank in ranks} == {len(slices[0])} == {-(-num_samples // world_size)}
    assert all(index in range(num_samples) for rank in ranks for index in rank)
    own = [i for rank, found in enumerate(ranks) for i in found if i % world_size == rank]
    assert sorted(own) == list(range(num_samples))


def test_evaluation_of_one_process_is_in_order():
    assert list(EvaluationSlice(5, 0, 1)) == [0, 1, 2, 3, 4]


class OnRank(FieldDataModule):
    """The data of one of four ranks, without the other three."""

    rank, world_size = 1, 4


def new_data(kind: type[FieldDataModule]) -> FieldDataModule:
    data = kind(lambda split: DummyDataset(split, (1, 2, 4, 4), SAMPLES, 7), BATCH, seed=3)
    data.setup("fit")
    return data


def test_loaders_of_a_rank():
    """A quarter of each batch, and every fourth validation sample."""
    data = new_data(OnRank)
    loaded = [index.tolist() for _, index in data.train_dataloader()]
    assert loaded == batches(rank=1, world_size=4)
    for loader in (data.val_dataloader(), data.test_dataloader(), data.predict_dataloader()):
        assert [i for _, index in loader for i in index.tolist()] == [1, 5]


def test_steps_do_not_depend_on_the_number_of_devices():
    one, quarter = new_data(FieldDataModule), new_data(OnRank)
    assert one.steps_per_epoch == quarter.steps_per_epoch == 6
    assert len(one.train_dataloader()) == len(quarter.train_dataloader()) == 6


def test_workers_of_two_ranks_have_different_seeds():
    """Where a dataset draws random numbers, rank 1 is not to repeat those of rank 0."""
    seeds = {
        new_data(kind).train_dataloader().generator.initial_seed()
        for kind in (FieldDataModule, OnRank)
    }
    assert len(seeds) == 2
