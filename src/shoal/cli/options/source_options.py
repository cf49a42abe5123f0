"""Options of a source, and functions that open it, building an index if needed."""

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
from shoal.indexing.tables.snapshot_protocol import WantedVersion
from shoal.storage.sources.source import SourceLike, printed
from shoal.storage.store_of_url import DEADLINE, deadline_of
from shoal.stream.mixing.mixture_from_file import is_mixture_file


def add_source_arguments(parser: argparse.ArgumentParser, *, is_optional: bool = False) -> None:
    """Declare the options of a dataset: shards, index and format."""
    add_shards_argument(parser, more=", or an index file beside its shards", is_optional=is_optional)
    parser.add_argument("--index", metavar="FILE", help="index of the shards (default: beside the shards)")
    text = "version of a table: a number, or the name of a tag, branch or revision (default: the current version)"
    parser.add_argument("--table-version", metavar="VERSION", help=text)
    parser.add_argument("--table-time", metavar="TIME", help="the version of a table that was current at this time")
    add_format_argument(parser)


def add_shards_argument(parser: argparse.ArgumentParser, *, more: str = "", is_optional: bool = False) -> None:
    """Declare the shards; several words are one list, because a shell may expand a glob."""
    text = f"shards: files or URLs, a directory, a glob, braces like train-{{000000..000099}}.tar{more}"
    parser.add_argument("source", metavar="SOURCE", nargs="*" if is_optional else "+", help=text)
    text = 'split of a directory, such as train; may be repeated; "all" reads every split'
    parser.add_argument("--split", metavar="NAME", action="append", help=text)
    add_store_arguments(parser)


def add_store_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the store of a URL."""
    text = "option for the store of a URL: region=eu-west-1, anonymous=true, headers.X-Key=...; may be repeated"
    parser.add_argument("--storage-option", metavar="KEY=VALUE", action="append", default=[], help=text)
    text = "seconds to retry a request to a URL (default: 120; 10 for a server that never answered)"
    parser.add_argument("--deadline", metavar="SECONDS", help=text)


def add_format_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the format of the shards: a name, or ``module:Class`` for a custom format."""
    plain = ", ".join(name for name in FORMATS if "." not in name)
    text = (
        f"format of the shards (default: by suffix): {plain}, or folder (each file is a sample); a suffix such as "
        ".gz or .zst means compressed; tokens:1024 has windows of 1,025 tokens; module:Class is your own format"
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
    """Return the options of the store for `shoal.open`; "a.b=c" is an entry of the dict "a".

    Errors hide values, because they may be secrets.
    """
    options: dict[str, Any] = {}
    for word in arguments.storage_option:
        name, mark, text = word.partition("=")
        if not (name and mark):
            msg = "--storage-option takes KEY=VALUE; an option has no KEY or no ="
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
    """Raise `UsageError` if the source is a mixture file; for verbs about one dataset."""
    if names_mixture(arguments):
        msg = f"{printed(source_of(arguments))} is a mixture file, but `shoal {arguments.verb}` works on one dataset"
        hint = "call this verb for each source; mix, plan, head, trace, audit, bench and verify take mixture files"
        raise UsageError(msg, hint=hint)


def open_requested(arguments: argparse.Namespace, *, num_first: int | None = None) -> tuple[Opened, bool]:
    """Open the source, and return it and True if its index was built, with a progress bar.

    If building takes long and ``num_first`` is given, only the shards of the first ``num_first`` samples are indexed,
    and a note says so.
    """
    refuse_mixture(arguments)
    note = ""
    with Progress(label="indexing", unit="bytes") as progress:
        source = find_source(
            source_of(arguments),
            split=arguments.split,
            index=arguments.index,
            format=arguments.format,
            storage_options=storage_options_of(arguments),
            progress=progress.show_bytes,
            wanted=_wanted_version(arguments),
        )
        if isinstance(source, Opened):
            opened = source
        elif num_first is None or not (source.can_grow and source.estimate.takes_long):
            opened = source.whole
        else:
            opened = source.beginning(max(1, num_first))
            shards = f"{opened.index.num_shards} of {counted(len(source.making.infos), 'shard')}"
            note = f"note: read only {shards} without an index; `shoal index` builds the index"
    if note:
        complain(note)
    return opened, progress.total is not None


def _wanted_version(arguments: argparse.Namespace) -> WantedVersion:
    version, time = getattr(arguments, "table_version", None), getattr(arguments, "table_time", None)
    return WantedVersion(int(version) if version is not None and version.isdecimal() else version, time)


def open_with_samples(arguments: argparse.Namespace, *, num_first: int | None = None) -> Opened:
    """Open the source as `open_requested` does; raise `UsageError` if it has no samples."""
    opened, _ = open_requested(arguments, num_first=num_first)
    if not opened.index.num_samples:
        msg = f"{printed(source_of(arguments))}: {counted(opened.index.num_shards, 'shard')} without a single sample"
        raise UsageError(msg, hint="`shoal info` shows the content of the shards")
    return opened


def _requested_format(text: str) -> str | Format:
    """Return the name of a format, or a custom format."""
    module, mark, name = text.partition(":")
    if not mark or options_in_name(text) is not None:
        return text
    if not (module and name):
        raise argparse.ArgumentTypeError(f"{text!r} is neither the name of a format nor module:Class")
    custom = imported_object(text)
    if isinstance(custom, type):
        try:
            custom = custom()
        except TypeError as error:
            msg = f"{text} cannot be made without arguments ({error}): name a finished object, module:NAME"
            raise argparse.ArgumentTypeError(msg) from None
    if missing := [member for member in ("name", *FORMAT_MEMBERS) if not hasattr(custom, member)]:
        msg = f"{text}: this object is not a format: it lacks {', '.join(missing)} (docs/guides/add-a-format.md)"
        raise argparse.ArgumentTypeError(msg)
    return cast("Format", custom)


def imported_object(text: str) -> Any:
    """Import the object ``module:NAME``, also from the working directory."""
    module, mark, name = text.partition(":")
    if not (mark and module and name):
        raise argparse.ArgumentTypeError(f"{text!r} is not module:NAME")
    value = _imported(module)
    for part in name.split("."):
        if not hasattr(value, part):
            msg = f"{text}: there is no {part!r}; {did_you_mean(part, vars(value))}".rstrip(" ;")
            raise argparse.ArgumentTypeError(msg)
        value = getattr(value, part)
    return value


def _imported(module: str) -> Any:
    if (directory := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, directory)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists, but imports a missing module
        msg = f"there is no module {error.name!r} in the working directory or in an installed package"
        raise argparse.ArgumentTypeError(msg) from None
