"""Is your answer right, and if not, why not?

  uv run python exercises/check.py                  all exercises of this chapter
  uv run python exercises/check.py masks            one of them
  uv run python exercises/check.py --solutions      the same for the solutions

An exercise is a folder. Read what its answer.py asks on top, change it, and run this. Beside it are
solution.py, and wrong_answers.yaml with mistakes that the tests make.
"""

import argparse
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
NAMES = sorted(path.parent.name for path in HERE.glob("*/answer.py"))
sys.path.insert(0, str(HERE.parent))  # for src, and the chapter's other modules


def load(path: Path) -> ModuleType:
    """A file as a module of its own."""
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fault_of(name: str, path: Path) -> str:
    """Why an answer is not right yet, in one line; empty if it is."""
    try:
        load(HERE / name / "check.py").check(load(path))
    except AssertionError as error:  # a check says what it has seen
        return str(error)
    except NotImplementedError:
        return "nothing is there yet"
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename) == path]
        if isinstance(error, SyntaxError):
            lines = [error.lineno]
        where = f" in line {lines[-1]}" if lines else ""
        return f"{type(error).__name__}{where}: {' '.join(str(error).split())}"
    return ""


def main() -> int:
    """Print a line for each exercise. Returns 1 if one is not right yet."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)}; none means all")
    parser.add_argument("--solutions", action="store_true", help="check the solutions")
    arguments = parser.parse_args()
    chosen = arguments.names or NAMES
    if unknown := [name for name in chosen if name not in NAMES]:
        sys.exit(f"error: {unknown[0]} is no exercise; allowed: {', '.join(NAMES)}")
    file = "solution.py" if arguments.solutions else "answer.py"
    faults = {name: fault_of(name, HERE / name / file) for name in chosen}
    width = max(map(len, chosen))
    for name, fault in faults.items():
        print(f"{'not yet' if fault else 'right':<9}{name:<{width}}  {fault}".rstrip())
    return 1 if any(faults.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
