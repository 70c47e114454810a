"""Parse train commands of the chapter that it is run in; the first word is a JSON list of them.

Each is a pair of a script's name and its arguments. It prints ``ok`` for each that is understood,
and ends at the first that is not. ``appendix/tests/test_texts.py`` runs it, in forks.py.
"""

import contextlib
import importlib
import io
import json
import sys
from pathlib import Path


def main() -> None:
    """Parse, and train nothing."""
    sys.path.insert(0, str(Path.cwd()))
    config = importlib.import_module("src.config")
    for script, words in json.loads(sys.argv[1]):
        if script == "lightning_trainer":
            sys.argv = [script, *words, "--print_config"]
            with contextlib.redirect_stdout(io.StringIO()):
                try:
                    importlib.import_module(script).main()
                except SystemExit as end:  # it prints the settings, and ends
                    if end.code:
                        raise
        elif script == "lightning_train":
            settings = importlib.import_module("src.lightning_settings").LightningSettings
            config.parse_config("", words, settings)
        else:
            config.parse_config("", words, config.TrainerSettings)
        print("ok", flush=True)


if __name__ == "__main__":
    main()
