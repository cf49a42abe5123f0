"""Options that name a source, and the opening of the source, which may have to build an index first."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any, cast

from shoal.cli.display.progress_bar import Progress
from shoal.cli.output import complain
from shoal.errors import UsageError
from shoal.figures import counted
from shoal.formats.format_registry import FORMAT_MEMBERS, FORMATS
from shoal.formats.rows.token_files import options_in_name
from shoal.formats.shard_format import Format
from shoal.hints import did_you_mean
from shoal.indexing.open_source import find_source
from shoal.indexing.opened_dataset import Opened
from shoal.storage.sources.source import SourceLike, printed
from shoal.storage.store_of_url import DEADLINE, deadline_of
from shoal.stream.mixing.mixture_from_file import is_mixture_file


def add_source_arguments(parser: argparse.ArgumentParser, *, is_optional: bool = False) -> None:
    """Declare the options of a dataset: the shards, their index and their format."""
    add_shards_argument(parser, more=", or an index file beside its shards", is_optional=is_optional)
    parser.add_argument("--index", metavar="FILE", help="index of the shards, if it is not beside them")
    add_format_argument(parser)


def add_shards_argument(parser: argparse.ArgumentParser, *, more: str = "", is_optional: bool = False) -> None:
    """Declare the shards; several words make one list, since a shell may have expanded a glob."""
    text = f"shards: files or URLs, a directory, a glob, braces like train-{{000000..000099}}.tar{more}"
    parser.add_argument("source", metavar="SOURCE", nargs="*" if is_optional else "+", help=text)
    split = 'split of a directory to read, such as train; may be repeated; "all" reads every split'
    parser.add_argument("--split", metavar="NAME", action="append", help=split)
    add_store_arguments(parser)


def add_store_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the store that a URL names."""
    option = "option for the store of a URL: region=eu-west-1, anonymous=true, headers.X-Key=...; may be repeated"
    parser.add_argument("--storage-option", metavar="KEY=VALUE", action="append", default=[], help=option)
    text = "how long to retry a request to a URL (default: 120; 10 for a server that has never answered)"
    parser.add_argument("--deadline", metavar="SECONDS", help=text)


def add_format_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the format of the shards: its name, or ``module:Class`` for a custom format."""
    plain = ", ".join(name for name in FORMATS if "." not in name)
    text = (
        f"format of the shards, if their suffixes do not tell: {plain}, or folder, where each file is a sample; .gz, "
        ".zst and so on after the name means compressed; tokens:1024 is windows of 1,025 tokens; module:Class is a "
        "format of your own"
    )
    parser.add_argument("--format", metavar="NAME", type=_requested_format, help=text)


def add_json_argument(parser: argparse.ArgumentParser, text: str = "print one JSON object") -> None:
    """Declare the option for JSON output."""
    parser.add_argument("--json", action="store_true", help=text)


def source_of(arguments: argparse.Namespace) -> SourceLike:
    """Return the source in the form that `shoal.open` takes."""
    words: list[str] = arguments.source
    return words[0] if len(words) == 1 else words


def storage_options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of ``--storage-option`` as `shoal.open` takes them; "a.b=c" is an entry of the dict "a".

    An error shows no value, which may be a secret.
    """
    options: dict[str, Any] = {}
    for word in arguments.storage_option:
        name, mark, text = word.partition("=")
        if not (name and mark):
            msg = "--storage-option takes KEY=VALUE, and one was given without a KEY or without an ="
            raise UsageError(msg, hint="--storage-option region=eu-west-1 --storage-option anonymous=true")
        group, dot, inner = name.partition(".")
        if dot:
            options.setdefault(group, {})[inner] = text
        else:
            options[name] = {"true": True, "false": False}.get(text.lower(), text)
    if arguments.deadline is not None:
        try:
            options[DEADLINE] = deadline_of({DEADLINE: arguments.deadline})
        except UsageError:
            msg = f"--deadline is a number of seconds above 0; got {arguments.deadline!r}"
            raise UsageError(msg, hint="--deadline 30") from None
    return options


def names_mixture(arguments: argparse.Namespace) -> bool:
    """Return True if the source is a mixture file."""
    return getattr(arguments, "format", None) is None and is_mixture_file(source_of(arguments))


def refuse_mixture(arguments: argparse.Namespace) -> None:
    """Raise `UsageError` if the source is a mixture file, and the verb is about the shards of one dataset."""
    if names_mixture(arguments):
        msg = f"{printed(source_of(arguments))} is a mixture file, and `shoal {arguments.verb}` works on one dataset"
        raise UsageError(
            msg, hint="call it for each source; mix, plan, head, trace, audit, bench and verify take the file"
        )


def open_requested(arguments: argparse.Namespace, *, num_first: int | None = None) -> tuple[Opened, bool]:
    """Open the source, and return whether its index had to be built, which a progress bar shows.

    Where that would take long, and only the first ``num_first`` samples are wanted, the shards that hold them are
    indexed and no others, which a note says.
    """
    refuse_mixture(arguments)
    note = ""
    with Progress(label="indexing", unit="bytes") as progress:
        found = find_source(
            source_of(arguments),
            split=arguments.split,
            index=arguments.index,
            format=arguments.format,
            storage_options=storage_options_of(arguments),
            progress=progress.show_bytes,
        )
        if isinstance(found, Opened):
            opened = found
        elif num_first is None or not (found.can_grow and found.estimate.takes_long):
            opened = found.whole
        else:
            opened = found.beginning(max(1, num_first))
            shown, every = opened.index.num_shards, len(found.making.infos)
            note = f"note: looked at {shown} of {counted(every, 'shard')}, which have no index; `shoal index` makes one"
    if note:
        complain(note)
    return opened, progress.total is not None


def open_with_samples(arguments: argparse.Namespace, *, num_first: int | None = None) -> Opened:
    """Open the source, which must hold samples; ``num_first`` is that of `open_requested`."""
    opened, _ = open_requested(arguments, num_first=num_first)
    if not opened.index.num_samples:
        msg = f"{printed(source_of(arguments))}: {counted(opened.index.num_shards, 'shard')} without a single sample"
        raise UsageError(msg, hint="`shoal info` shows what the shards hold instead")
    return opened


def _requested_format(text: str) -> str | Format:
    """Return the name, or the format object."""
    module, mark, name = text.partition(":")
    if not mark or options_in_name(text) is not None:
        return text
    if not (module and name):
        raise argparse.ArgumentTypeError(f"{text!r} is neither the name of a format nor module:Class")
    found = imported_object(text)
    if isinstance(found, type):
        try:
            found = found()
        except TypeError as error:
            msg = f"{text} cannot be made without arguments ({error}): name an object of it, module:NAME"
            raise argparse.ArgumentTypeError(msg) from None
    if missing := [each for each in ("name", *FORMAT_MEMBERS) if not hasattr(found, each)]:
        msg = f"{text}: this is no format, since it has no {', '.join(missing)} (docs/guides/add-a-format.md)"
        raise argparse.ArgumentTypeError(msg)
    return cast("Format", found)


def imported_object(text: str) -> Any:
    """Return the object that ``module:NAME`` names; a module of the working directory is found as by Python itself."""
    module, mark, name = text.partition(":")
    if not (mark and module and name):
        raise argparse.ArgumentTypeError(f"{text!r} is not module:NAME")
    found = _imported(module)
    for part in name.split("."):
        if not hasattr(found, part):
            msg = f"{text}: there is no {part!r}; {did_you_mean(part, vars(found))}".rstrip(" ;")
            raise argparse.ArgumentTypeError(msg)
        found = getattr(found, part)
    return found


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
