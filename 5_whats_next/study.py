"""Experiment first, train later: a small study of the settings, before the long training.

  uv run python study.py                                  the search space of study.yaml
  uv run python study.py                                  once more: goes on, or shows its table
  uv run python study.py --name long --trials 40 --seeds 3 --samples 16384
  uv run python study.py --name lr --space model.patch_size=null --space "optimizer.lr=[1e-3, 4e-3]"
  uv run python study.py --name deep --model.depth 4      any setting of lightning_train.py
  uv run python lightning_train.py -c output/study/small/best.yaml      train the winner

All trials see the same number of samples and are scored on the same hidden pixels. The table, the
pictures and the winner's config go to output/study/NAME.
"""

import argparse
import os
import sys
from pathlib import Path

try:
    import optuna
except ModuleNotFoundError as missing:
    sys.exit(f"error: study.py needs the package {missing.name}: uv sync --group study")

from src.config import CHAPTER
from src.errors import UserError
from src.lightning_errors import one_line_errors
from src.lightning_settings import quiet
from src.study_report import report
from src.study_run import Study, again
from src.study_space import SECTIONS, read_settings
from src.study_trial import Interrupted

SIZES = {
    "trials": "settings to try; more than before prolongs a study",
    "seeds": "trainings of each",
    "samples": "that each training sees",
    "evaluations": "of each training",
    "seed": "of the search",
}


def options() -> argparse.ArgumentParser:
    """The study's own options; all others go to lightning_train.py's configuration."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        usage="%(prog)s [-c FILE] [--name NAME] [--trials N] ... [--SECTION.KEY VALUE ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-c", "--config", default=str(CHAPTER / "study.yaml"), help="by default study.yaml")
    add("--name", default="small", help="of the study; its folder is output/study/NAME")
    for name, text in SIZES.items():
        add(f"--{name}", type=int, help=f"{text}; by default the file's")
    add(
        "--space",
        metavar="KEY=VALUES",
        action="append",
        default=[],
        help="search KEY in a list or a range, in place of the file's; null does not search it",
    )
    add("--new", action="store_true", help="begin anew; what the study has found is deleted")
    add("--save-dir", help="folder for table, pictures and config; by default the study's own")
    add("--output-dir", default="output/study", help="folder of the studies")
    return parser


def parse() -> tuple[argparse.Namespace, list[str]]:
    """The study's options, and the words for the training's configuration."""
    parser = options()
    chosen, words = parser.parse_known_args()
    prefixes = tuple(f"--{section}." for section in SECTIONS)
    before = ""
    for word in words:
        is_value = before.startswith(prefixes) and "=" not in before and not word.startswith("--")
        if not word.startswith(prefixes) and not is_value:
            allowed = ", ".join([*parser._option_string_actions, *(f"{p}KEY" for p in prefixes)])
            raise UserError(f"{word} is no option; allowed: {allowed}")
        before = word
    if not chosen.name or Path(chosen.name).name != chosen.name:
        raise UserError(f"--name: {chosen.name!r} is no name of a folder; allowed: without slashes")
    return chosen, words


def main() -> int:
    """Search, or go on searching; report. Returns the exit code."""
    chosen, words = parse()
    sizes = {name: getattr(chosen, name) for name in SIZES}
    settings = read_settings(Path(chosen.config), sizes, chosen.space)
    quiet()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    folder = CHAPTER / chosen.output_dir / chosen.name
    with Study(folder, settings, words, chosen.new) as study:
        try:
            study.run()
        except Interrupted as interrupted:
            print(f"stopped after {len(study.finished())} of {settings.trials} trials; to go on:")
            print(f"  {again([os.path.relpath(sys.argv[0]), *sys.argv[1:]])}")
            return 128 + interrupted.signal_number
        report(study, CHAPTER / chosen.save_dir if chosen.save_dir else folder)
    return 0


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
