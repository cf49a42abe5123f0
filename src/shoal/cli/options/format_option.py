"""The option for the format of shards: its name, or ``module:Class`` for a custom format."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any, cast

from shoal.formats.known_formats import FORMATS
from shoal.formats.shard_format import Format
from shoal.hints import did_you_mean

_NEEDED = ("name", "suffixes", "scan", "parse")


def add_format_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the option for the format of the shards."""
    plain = ", ".join(name for name in FORMATS if "." not in name)
    text = (
        f"format of the shards, where suffixes do not say it: {plain}; compressed ones with .gz, .zst and so on behind"
        "; folder, where each file is a sample; module:Class is one of your own"
    )
    parser.add_argument("--format", metavar="NAME", type=_asked_format, help=text)


def _asked_format(text: str) -> str | Format:
    """Return the name, or the format object; a module of the working directory is found as by Python itself."""
    module, mark, name = text.partition(":")
    if not mark:
        return text
    if not (module and name):
        msg = f"{text!r} is neither the name of a format nor module:Class"
        raise argparse.ArgumentTypeError(msg)
    found = _named_in(_imported(module), name, text)
    made = _made(found, text) if isinstance(found, type) else found
    if missing := [each for each in _NEEDED if not hasattr(made, each)]:
        msg = f"{text}: this is no format, since it has no {', '.join(missing)} (docs/guides/add-a-format.md)"
        raise argparse.ArgumentTypeError(msg)
    return cast("Format", made)


def _imported(module: str) -> Any:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # from a module that it imports itself
        msg = f"there is no module {error.name!r} in the working directory, nor is one installed"
        raise argparse.ArgumentTypeError(msg) from None


def _named_in(found: Any, name: str, text: str) -> Any:
    for part in name.split("."):
        if not hasattr(found, part):
            msg = f"{text}: there is no {part!r}; {did_you_mean(part, vars(found))}".rstrip(" ;")
            raise argparse.ArgumentTypeError(msg)
        found = getattr(found, part)
    return found


def _made(kind: type, text: str) -> object:
    try:
        made: object = kind()
    except TypeError as error:
        msg = f"{text} cannot be made without arguments ({error}): name an object of it, module:NAME"
        raise argparse.ArgumentTypeError(msg) from None
    return made
