"""The trials of a study, one after the other, in a file that survives whatever ends them."""

import dataclasses
import functools
import itertools
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock
import optuna
from optuna.distributions import BaseDistribution
from optuna.pruners import MedianPruner
from optuna.samplers import TPESampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.engine import URL
from tqdm import tqdm

from src.errors import UserError
from src.interrupt import GracefulInterrupt
from src.study_space import StudySettings, as_arguments, distributions, ends
from src.study_trial import (
    Datasets,
    Diverged,
    Training,
    Watch,
    check_trial,
    read_config,
    stop_if_told,
    task_of,
    train,
)

DONE = (TrialState.COMPLETE, TrialState.PRUNED)
MOST_CHECKS = 200  # combinations of model settings that are tried out before the first trial


class Study:
    """A search that ends with the same trials, however often it is interrupted.

    Optuna's samplers draw from a generator whose state is lost with the process. Here each trial
    gets a sampler of its own, seeded with the number of trials that are done: what it proposes
    depends on that number and on their results alone. A trial that was killed does not count, and
    its settings come again.

    Args:
        folder: for study.db and all that the study writes; it need not be there.
        settings: what to search, and how much of it.
        words: of the command line of lightning_train.py, for all trainings.
        new: delete what an earlier study of this name has found.
    """

    def __init__(
        self, folder: Path, settings: StudySettings, words: Sequence[str], new: bool = False
    ) -> None:
        self.folder, self.settings, self.words, self.new = folder, settings, list(words), new
        self.space = distributions(settings.space)
        self.shared = [*as_arguments(settings.train), *words]  # the command line has the last word
        base = read_config(self.shared, {})
        self.baseline = params_of(base, self.space)
        self.datasets: Datasets = functools.cache(base.data.dataset)  # once, not in each trial
        configs = [read_config(self.shared, params) for params in extremes(self.space)]
        for config in configs:
            check_trial(config, settings, self.data_of(config))
        self.task = task_of(configs, self.data_of(configs[0]), settings.evaluation_mask_ratio)

    def data_of(self, config: Any) -> Datasets:
        """The datasets of a trial; the same for all, unless the study searches their settings."""
        searched = any(key.startswith("data.dataset") for key in self.space)
        return config.data.dataset if searched else self.datasets

    def __enter__(self) -> "Study":
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock = filelock.FileLock(self.folder / "lock")
        try:
            self.lock.acquire(timeout=0)
        except filelock.Timeout as error:
            raise UserError(f"--name: {self.folder.name} is running in another process") from error
        database = self.folder / "study.db"
        if self.new:
            database.unlink(missing_ok=True)
        address = URL.create("sqlite", database=str(database)).render_as_string(hide_password=False)
        self.storage = RDBStorage(address)
        try:
            self.study = optuna.create_study(
                storage=self.storage,
                study_name=self.folder.name,
                load_if_exists=True,
                pruner=MedianPruner(self.settings.unpruned_trials, n_warmup_steps=2),
            )
            self.check_same()
            self.drop_unfinished()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.storage.remove_session()
        self.storage.engine.dispose()
        self.lock.release()

    def check_same(self) -> None:
        """Raise UserError if the study was begun with other settings; it may get longer."""
        here = dataclasses.asdict(self.settings) | {"command line": self.words}
        here = json.loads(json.dumps(here))
        trials = here.pop("trials")
        there = self.study.user_attrs.get("settings")
        if there is None:
            self.study.set_user_attr("settings", here)
        elif different := [key for key in here if here[key] != there.get(key)]:
            key = different[0]
            raise UserError(
                f"{key}: the study {self.folder.name} was begun with {there.get(key)}, here it is "
                f"{here[key]}; allowed: the same, or another --name"
            )
        if (done := len(self.finished())) > trials:
            raise UserError(
                f"trials: the study {self.folder.name} has {done} already; allowed: {done} and more"
            )

    def drop_unfinished(self) -> None:
        """Mark trials as failed that a kill has left as running: they come again."""
        for trial in self.study.get_trials(deepcopy=False):
            if not trial.state.is_finished():
                self.storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)

    def finished(self) -> list[FrozenTrial]:
        """Complete and pruned trials, in their order."""
        return self.study.get_trials(deepcopy=False, states=DONE)

    def run(self) -> None:
        """Try as many settings as there are trials left. Raises Interrupted on Ctrl-C."""
        settings = self.settings
        each, done = settings.seeds * settings.samples, len(self.finished())
        with (
            GracefulInterrupt() as self.interrupt,
            tqdm(
                total=settings.trials * each,
                initial=done * each,
                unit="sample",
                disable=None,  # only where somebody looks
            ) as bar,
        ):
            for slot in range(done, settings.trials):
                stop_if_told(self.interrupt)
                bar.set_description(f"trial {slot + 1} of {settings.trials}")
                line = self.try_one(slot, bar)
                bar.update((slot + 1) * each - bar.n)
                bar.write(line, file=sys.stdout)
                sys.stdout.flush()  # a log file shows how far it is

    def try_one(self, slot: int, bar: tqdm) -> str:
        """Choose settings, train with them, keep the result; returns a line about it."""
        settings = self.settings
        self.study.sampler = TPESampler(
            seed=1000 * settings.seed + slot,
            n_startup_trials=settings.random_trials,
            constant_liar=False,
        )
        if slot == 0 and self.baseline is not None:
            self.study.enqueue_trial(self.baseline)
        trial = self.study.ask(self.space)
        config = read_config(self.shared, trial.params)
        trainings: list[Training] = []
        ended = ""

        def scored() -> None:
            curve = trainings[-1].curve
            if len(trainings) == 1:  # the first seed decides about the others
                trial.report(curve[-1], len(curve))
                if settings.seeds * settings.evaluations > len(curve) and trial.should_prune():
                    raise optuna.TrialPruned

        try:
            for seed in range(settings.seeds):
                trainings.append(Training())
                watch = Watch(trainings[-1], scored, bar.update, self.interrupt)
                number = settings.seed + seed + 1
                train(config, self.data_of(config), self.task, settings, number, watch)
        except optuna.TrialPruned:
            ended = "pruned"
        except Diverged:
            ended = "diverged"
        trial.set_user_attr("trainings", [dataclasses.asdict(one) for one in trainings])
        trial.set_user_attr("ended", ended)
        if ended:
            self.study.tell(trial, state=TrialState.PRUNED)
        else:
            self.study.tell(trial, sum(one.curve[-1] for one in trainings) / len(trainings))
        return summary(self.finished()[-1], slot, settings)


def summary(trial: FrozenTrial, slot: int, settings: StudySettings) -> str:
    """A line about a trial that has just ended."""
    curve = trial.user_attrs["trainings"][-1]["curve"]
    ended = trial.user_attrs["ended"]
    if ended:
        seen = len(curve) * settings.between
        result = f"{ended} after {seen} samples" + (f": {curve[-1]:.4f}" if curve else "")
    else:
        result = f"RMSE {trial.value:.4f}"
    return f"trial {slot + 1}: {describe(trial.params)}: {result}"


def describe(params: Mapping[str, Any]) -> str:
    """A trial's settings on one line, by the last part of their names."""
    return ", ".join(f"{key.rpartition('.')[2]} {short(value)}" for key, value in params.items())


def short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value).replace(", ", "x").strip("[]")


def params_of(config: Any, space: Mapping[str, BaseDistribution]) -> dict[str, Any] | None:
    """The configuration's values of what is searched; None if one of them is not in the space."""
    found: dict[str, Any] = {}
    for key, values in space.items():
        value = config
        for name in key.split("."):
            value = getattr(value, name, None)
        text = json.dumps(value) if isinstance(value, list | tuple | str | bool) else value
        found[key] = json.dumps(value) if hasattr(values, "choices") else text
        try:
            if not values._contains(values.to_internal_repr(found[key])):
                return None
        except (ValueError, TypeError):
            return None
    return found


def extremes(space: Mapping[str, BaseDistribution]) -> list[dict[str, Any]]:
    """Settings that have to work before the first trial begins.

    All combinations of the model's choices and ends of ranges, and each other value by itself.
    """
    model = {key: ends(values) for key, values in space.items() if key.startswith("model.")}
    other = {key: ends(values) for key, values in space.items() if key not in model}
    combined = itertools.islice(itertools.product(*model.values()), MOST_CHECKS)
    found = [dict(zip(model, values, strict=True)) for values in combined]
    return found + [found[0] | {key: value} for key, values in other.items() for value in values]


def again(words: Sequence[str]) -> str:
    """The command that was given, to be pasted."""
    return shlex.join(["uv", "run", "python", *words])
