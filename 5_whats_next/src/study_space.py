"""What a study searches, and how much of it: study.yaml, checked before any work starts."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from src.errors import UserError

SECTIONS = ("model", "data", "optimizer", "trainer")  # of config.yaml
EXPONENT = re.compile(r"[+-]?[0-9.]+e[+-]?[0-9]+", re.IGNORECASE)
RANGE = {"low", "high", "log", "step"}
LEAST = {"trials": 1, "seeds": 1, "samples": 1, "evaluations": 1, "seed": 0}
LEAST |= {"random_trials": 1, "unpruned_trials": 0}


@dataclass(frozen=True)
class StudySettings:
    """The keys of study.yaml; see there for what each of them means."""

    trials: int
    seeds: int
    samples: int
    evaluations: int
    seed: int
    evaluation_mask_ratio: float
    random_trials: int
    unpruned_trials: int
    space: Mapping[str, Any]
    train: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, least in LEAST.items():
            given = getattr(self, key)
            if type(given) is not int or given < least:
                raise UserError(f"{key}: {given!r}; allowed: whole numbers from {least}")
        if type(self.evaluation_mask_ratio) not in (int, float):
            given = self.evaluation_mask_ratio
            raise UserError(f"evaluation_mask_ratio: {given!r}; allowed: between 0 and 1")
        if self.samples % self.evaluations:
            raise UserError(
                f"evaluations: {self.evaluations} do not divide {self.samples} samples; allowed: "
                "divisors of samples"
            )
        for name in ("space", "train"):
            section = getattr(self, name)
            if not isinstance(section, Mapping):
                raise UserError(f"{name}: {section!r}; allowed: keys of config/config.yaml")
            for key in section:
                check_key(f"{name}: {key}", str(key))
        if not self.space:
            raise UserError("space: it is empty; allowed: keys with a list or a range each")

    @property
    def between(self) -> int:
        """Samples from one evaluation to the next."""
        return self.samples // self.evaluations


def check_key(what: str, key: str) -> None:
    """Raise UserError for a key that cannot be one of config.yaml."""
    if key.partition(".")[0] not in SECTIONS or "." not in key:
        allowed = ", ".join(f"{section}.KEY" for section in SECTIONS)
        raise UserError(f"{what} is no key of config/config.yaml; allowed: {allowed}")


def read_settings(
    path: Path, given: Mapping[str, Any], ranges: Sequence[str] = ()
) -> StudySettings:
    """The file's settings, with those of the command line in front of them.

    Args:
        path: a YAML file such as study.yaml.
        given: settings of the command line; None stands for what was not given.
        ranges: KEY=VALUES, each in place of the file's; null takes the key out of the search.
    """
    try:
        found = load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--config: cannot read {path}: {first_line(error)}") from error
    except yaml.YAMLError as error:
        raise UserError(f"--config: {path} is no YAML: {first_line(error)}") from error
    names = [one.name for one in dataclasses.fields(StudySettings)]
    if not isinstance(found, dict):
        raise UserError(f"--config: {path} has no keys; allowed: {', '.join(names)}")
    if unknown := [str(key) for key in found if key not in names]:
        raise UserError(f"{path.name}: {unknown[0]} is unknown; allowed: {', '.join(names)}")
    found |= {key: value for key, value in given.items() if value is not None}
    if lacking := [name for name in names if name not in found and name != "train"]:
        raise UserError(f"{path.name}: {lacking[0]} is missing")
    if isinstance(found["space"], dict):
        found["space"] = override(found["space"], ranges)
    return StudySettings(**found)


def override(space: dict[str, Any], ranges: Sequence[str]) -> dict[str, Any]:
    """The search space with the ranges of the command line."""
    space = dict(space)
    for text in ranges:
        key, equals, values = text.partition("=")
        if not equals:
            raise UserError(f"--space: {text}; allowed: KEY=VALUES")
        try:
            space[key] = load(values)
        except yaml.YAMLError as error:
            raise UserError(f"--space: {text} is no YAML: {first_line(error)}") from error
        if space[key] is None:
            del space[key]
    return space


def load(text: str) -> Any:
    """YAML, with 1e-3 as a number, as the train script reads it; PyYAML wants 1.0e-3."""
    return with_numbers(yaml.safe_load(text))


def with_numbers(value: Any) -> Any:
    """Texts that Python reads as numbers become numbers, at any depth."""
    if isinstance(value, dict):
        return {key: with_numbers(one) for key, one in value.items()}
    if isinstance(value, list):
        return [with_numbers(one) for one in value]
    is_number = isinstance(value, str) and EXPONENT.fullmatch(value)
    return float(value) if is_number else value


def first_line(error: Exception) -> str:
    return " ".join(str(error).split())


def distributions(space: Mapping[str, Any]) -> dict[str, BaseDistribution]:
    """Optuna's form of the search space.

    Choices are kept as JSON: a study's file holds numbers and texts, and a patch size is a list.
    """
    return {key: distribution(key, values) for key, values in space.items()}


def distribution(key: str, values: Any) -> BaseDistribution:
    """Raises UserError for anything but a list of choices or a range."""
    if isinstance(values, list) and values:
        return CategoricalDistribution([json.dumps(value) for value in values])
    allowed = "a list, or a range such as {low: 1, high: 8}, with log: true or step: 1"
    if not isinstance(values, dict) or not {"low", "high"} <= values.keys() <= RANGE:
        raise UserError(f"space: {key}: {values!r}; allowed: {allowed}")
    bounds = [values["low"], values["high"], values.get("step", 1)]
    if any(type(number) not in (int, float) for number in bounds):
        raise UserError(f"space: {key}: {values!r} has something that is no number")
    whole = all(type(number) is int for number in bounds)
    try:
        if whole:
            return IntDistribution(**values)
        return FloatDistribution(**values)
    except (ValueError, TypeError) as error:
        raise UserError(f"space: {key}: {values!r}: {first_line(error)}") from error


def ends(values: BaseDistribution) -> list[Any]:
    """All choices, or both ends of a range: what has to work before the search may begin."""
    if isinstance(values, CategoricalDistribution):
        return list(values.choices)
    assert isinstance(values, IntDistribution | FloatDistribution)
    return [values.low, values.high]


def as_arguments(values: Mapping[str, Any]) -> list[str]:
    """Values as words of the train script's command line."""
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in values.items()}
    return [f"--{key}={text}" for key, text in texts.items()]
