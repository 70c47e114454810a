"""Which variables of the environment this chapter reads, and which of them are set.

  uv run python environment.py

Says for each variable where its value comes from: the environment, or the file .env. The value of a
secret is never shown. The exit code is 1 if something is wrong, such as a .env that others can
read.
"""

import argparse
import os
import sys

from src.environment import env_file, rows, warnings_about
from src.errors import one_line_errors


def main() -> int:
    """Print the table and the warnings. Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    path = env_file()
    where = os.path.relpath(path) if path else "none: cp .env.example .env && chmod 600 .env"
    print(f".env: {where}\n")
    table = [("variable", "value (default)", "from", "what for"), *rows()]
    widths = [max(len(row[column]) for row in table) for column in range(3)]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print("  ".join([*cells, row[3]]))
    problems = warnings_about(path)
    for problem in problems:
        print(f"\nwarning: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    with one_line_errors():
        sys.exit(main())
