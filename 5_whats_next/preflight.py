"""Look before you train: everything that could go wrong after an hour, within a minute.

  uv run python preflight.py                         the default training
  uv run python preflight.py -c config/real.yaml --price_per_hour 20
  uv run python preflight.py -c config/real.yaml --trainer.devices 1 --data.batch_size 64

Takes the settings of lightning_train.py, and these options:

  --price_per_hour P   of all machines together, in any currency; null does not tell the cost
  --steps N            steps that are timed after the warm-up (default: 10)
  --limit S            seconds that a check may wait for the network (default: 5)

Opens the data, reads a sample, writes and deletes an object beside the checkpoints, computes a few
steps; says what is ok, what is not, and what to do. Nothing stays behind. The exit code is 1 if
anything is not ok.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

from src.config import parse_config
from src.environment import load_environment
from src.errors import UserError
from src.lightning_errors import first_sentence, one_line_errors
from src.lightning_settings import LightningSettings, quiet
from src.preflight import machine, steps, storage
from src.preflight.plan import HANGING, Finding, Plan, State
from src.secret_arguments import refuse_secrets
from tqdm import tqdm


class Check(NamedTuple):
    """A check, what has to be ok before it, and what to do where an error does not say it."""

    run: Callable[[Plan], Finding]
    needs: tuple[str, ...] = ()
    todo: str = ""


LOOK = "check data.dataset.url, AWS_ENDPOINT_URL and the network; python environment.py helps"
CHECKS = {
    "variables": Check(machine.variables),
    "devices": Check(machine.devices),
    "precision": Check(machine.precision, ("devices",)),
    "cores": Check(machine.cores),
    "credentials": Check(storage.credentials, todo="python environment.py shows which are set"),
    "data": Check(storage.data, todo=LOOK),
    "statistics": Check(storage.statistics, ("data",)),
    "chunks": Check(storage.chunks, ("data",), LOOK),
    "sample": Check(storage.sample, ("data",), LOOK),
    "model": Check(storage.model, ("sample",)),
    "batch": Check(machine.batch),
    "shared memory": Check(machine.shared_memory, ("sample",)),
    "disk": Check(machine.disk, ("model",)),
    "wandb": Check(machine.wandb),
    "write": Check(storage.write, todo=storage.CHECK_KEYS),
    "time": Check(
        steps.speed, ("devices", "precision", "model", "batch"), "train a few steps to see more"
    ),
    "memory": Check(machine.memory, ("time",)),
    "cost": Check(steps.cost, ("time",)),
    "upload": Check(storage.upload, ("write", "model", "time")),
}


def main() -> int:
    """Read the settings, run all checks, print the table. Returns the exit code."""
    load_environment()
    own, arguments = own_options(sys.argv[1:])
    refuse_secrets(arguments)
    config, _ = parse_config(__doc__, arguments, settings=LightningSettings)
    quiet()
    findings = run_checks(Plan(config, own.steps, own.price_per_hour, own.limit))
    print(table(findings))
    return 1 if any(finding.state == "not ok" for finding in findings.values()) else 0


def own_options(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options that lightning_train.py does not have, and the other arguments."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--price_per_hour", type=price)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--limit", type=float, default=5.0)
    try:
        own, others = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise UserError(f"{error.argument_name}: {error.message}; allowed: a number") from error
    if own.steps < 1 or (own.price_per_hour or 0) < 0 or own.limit < 3:
        raise UserError("--steps, --price_per_hour, --limit: allowed: from 1, from 0, from 3")
    return own, others


def price(text: str) -> float | None:
    return None if text == "null" else float(text)


def run_checks(plan: Plan) -> dict[str, Finding]:
    """What each check says; an error in one of them does not stop the others."""
    findings: dict[str, Finding] = {}
    bar = tqdm(CHECKS.items(), leave=False, disable=not sys.stderr.isatty())
    for name, check in bar:
        bar.set_description(name)
        missing = [need for need in check.needs if findings[need].state.startswith("not")]
        if missing:
            findings[name] = Finding("not checked", f"needs {', '.join(missing)}")
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they would tear the bar, and the table says more
                findings[name] = check.run(plan)
        except UserError as error:
            found, _, todo = str(error).partition("; ")
            findings[name] = Finding("not ok", found, todo or check.todo)
        except Exception as error:
            found = f"{type(error).__name__}: {first_sentence(error)}"
            findings[name] = Finding("not ok", found, check.todo)
    return findings


def table(findings: dict[str, Finding]) -> str:
    """One line for each check, and below it what to do."""
    width = max(map(len, findings))
    lines = []
    for name, (state, found, todo) in findings.items():
        lines.append(f"{state:<11}  {name:<{width}}  {found}")
        if todo:
            lines.append(f"{'':<11}  {'':<{width}}  -> {todo}")
    states: tuple[State, ...] = ("ok", "warning", "not ok", "not checked")
    counts = [sum(finding.state == state for finding in findings.values()) for state in states]
    names = (f"{count} {state}" for count, state in zip(counts, states, strict=True) if count)
    return "\n".join([*lines, "", ", ".join(names)])


def end(code: int) -> None:
    """End the process: at its end Python would wait for threads that wait for an answer."""
    if any(thread.is_alive() for thread in HANGING):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    with one_line_errors():
        end(main())
