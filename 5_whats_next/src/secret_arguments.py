"""Refuse secrets on the command line and in YAML files, before anything keeps or repeats them.

Other users see a command line (``ps``), and each run keeps its configuration: in config.yaml, in
wandb's files, in checkpoints. No message here repeats what was given.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import yaml

from src.environment import SECRETS
from src.errors import UserError

NAME = re.compile(
    r"(^|_|-)(key|secret|token|password|passwd|credentials?|sas|connection_string|access_key_id)$",
    re.IGNORECASE,
)
NOTHING = (None, False, "", "null")
LEAST = 8  # characters; a shorter value of a variable may stand in a configuration by chance
REMEDY = "secrets belong into the environment or .env, see .env.example"


def refuse_secrets(arguments: Sequence[str]) -> None:
    """Raise UserError if an argument, or a YAML file that one names, has a secret in it."""
    for key, value in settings_of(arguments):
        words = str(value)
        if NAME.search(key.rpartition(".")[2]) and value not in NOTHING:
            raise UserError(f"{key}: looks like a secret, and is refused; allowed: none, {REMEDY}")
        if any(has_credentials(word) for word in re.findall(r"[\w+.-]+://[^\s'\",\]}]+", words)):
            raise UserError(f"{key}: has credentials in a URL; allowed: the URL alone, {REMEDY}")
        for name in SECRETS:
            secret = os.environ.get(name, "")
            if len(secret) >= LEAST and secret in words:
                raise UserError(f"{key}: has the value of {name}; allowed: anything else, {REMEDY}")


def has_credentials(url: str) -> bool:
    """Whether a URL has a user with a password, or a signature that is as good as one."""
    try:
        parts = urlsplit(url)
        query = [name.lower() for name, _ in parse_qsl(parts.query)]
        signed = {"sig", "x-amz-signature", "x-goog-signature", "access_token"} & set(query)
        return bool(parts.password or signed)
    except ValueError:  # no URL at all
        return False


def settings_of(arguments: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The key and the value of each setting, those of YAML files included."""
    words = list(arguments)
    for number, word in enumerate(words):
        if not word.startswith("-"):
            continue
        key, equals, value = word.partition("=")
        if not equals and word.startswith("-c") and not word.startswith("--"):
            key, value = "-c", word[2:]
        if not value and number + 1 < len(words) and not words[number + 1].startswith("--"):
            value = words[number + 1]
        if key in ("-c", "--config"):
            yield from leaves(read(value.removeprefix("=")), key)
        else:
            yield key.lstrip("-"), value
            if value.lstrip().startswith(("{", "[")):
                yield from leaves(parse(value), key.lstrip("-"))


def leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The keys, joined by dots, and the values of nested dictionaries and lists."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from leaves(value, f"{path}.{name}".removeprefix("-c.").removeprefix("--config."))
    elif isinstance(tree, list):
        for value in tree:
            yield from leaves(value, path)
    else:
        yield path, tree


def read(path: str) -> Any:
    """A YAML file's content, or nothing: what cannot be read is the parser's to report."""
    try:
        return parse(Path(path).read_text())
    except (OSError, UnicodeDecodeError, ValueError):
        return None


def parse(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return None
