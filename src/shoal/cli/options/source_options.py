"""Options for the source of a verb, and the opening of the source, which may have to build an index first."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from shoal.cli.options.format_option import add_format_argument
from shoal.cli.progress import Progress
from shoal.errors import UsageError
from shoal.figures import counted
from shoal.indexing.open_source import Opened, open_source
from shoal.storage.sources.source import SourceLike, printed
from shoal.storage.stores import DEADLINE, deadline_of


@dataclass(frozen=True, slots=True)
class OpenedNow:
    """An opened source, and whether its index had to be built."""

    opened: Opened
    index_was_made: bool


def add_source_arguments(parser: argparse.ArgumentParser, *, is_optional: bool = False) -> None:
    """Declare the options of the source: the shards, their index and their format."""
    add_shards_argument(parser, more=", or an index file beside its shards", is_optional=is_optional)
    parser.add_argument("--index", metavar="FILE", help="an index kept elsewhere than beside the shards")
    add_format_argument(parser)


def add_shards_argument(parser: argparse.ArgumentParser, *, more: str = "", is_optional: bool = False) -> None:
    """Declare the shards; several words make one list, since a shell may have expanded a glob."""
    text = f"shards: files or URLs, a directory, a glob, braces like train-{{000000..000099}}.tar{more}"
    parser.add_argument("source", metavar="SOURCE", nargs="*" if is_optional else "+", help=text)
    split = 'which of the splits of a directory to read, as in --split train; may be repeated; "all" reads all of them'
    parser.add_argument("--split", metavar="NAME", action="append", help=split)
    option = "what the store of a URL should know: region=eu-west-1, anonymous=true, headers.X-Key=...; may be repeated"
    parser.add_argument("--storage-option", metavar="KEY=VALUE", action="append", default=[], help=option)
    add_deadline_argument(parser)


def add_deadline_argument(parser: argparse.ArgumentParser) -> None:
    """Declare how long requests to a store are retried."""
    text = "how long a request to a URL is made again (120, and 10 for a server that never answered)"
    parser.add_argument("--deadline", metavar="SECONDS", help=text)


def add_json_argument(parser: argparse.ArgumentParser, text: str = "one JSON object, for machines") -> None:
    """Declare the option for JSON output."""
    parser.add_argument("--json", action="store_true", help=text)


def source_of(arguments: argparse.Namespace) -> SourceLike:
    """Return the source in the form that `shoal.open` takes."""
    words: list[str] = arguments.source
    return words[0] if len(words) == 1 else words


def storage_options_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of ``--storage-option`` as `shoal.open` takes them; "a.b=c" is an entry of the dict "a".

    Raises
    ------
    UsageError
        An option is not KEY=VALUE. No value is shown: it may be a secret.
    """
    options: dict[str, Any] = {}
    for word in arguments.storage_option:
        name, mark, text = word.partition("=")
        if not (name and mark):
            msg = "--storage-option takes KEY=VALUE, and one was given without a KEY or without an ="
            raise UsageError(msg, hint="--storage-option region=eu-west-1 --storage-option anonymous=true")
        value = {"true": True, "false": False}.get(text.lower(), text)
        group, dot, inner = name.partition(".")
        if dot:
            options.setdefault(group, {})[inner] = text
        else:
            options[name] = value
    if arguments.deadline is not None:
        options[DEADLINE] = _deadline(arguments.deadline)
    return options


def _deadline(text: str) -> float | None:
    try:
        return deadline_of({DEADLINE: text})
    except UsageError:
        msg = f"--deadline is a number of seconds above 0; got {text!r}"
        raise UsageError(msg, hint="--deadline 30") from None


@dataclass(slots=True)
class ShowBytes:
    """A callback that forwards progress in bytes to a progress bar, and records that it was called."""

    progress: Progress
    was_called: bool = False

    def __call__(self, done_bytes: int, total_bytes: int, _: int = 0) -> None:
        """Show that ``done_bytes`` of ``total_bytes`` are done."""
        self.was_called = True
        self.progress.total = total_bytes
        self.progress.update(done_bytes)


def open_asked(arguments: argparse.Namespace) -> OpenedNow:
    """Open the source; a progress bar shows the building of an index, if one is needed.

    Raises
    ------
    ShoalError
        See `shoal.indexing.open_source.open_source`.
    """
    with Progress(total=None, label="indexing", unit="bytes") as progress:
        show = ShowBytes(progress)
        opened = open_source(
            source_of(arguments),
            split=arguments.split,
            index=arguments.index,
            format=arguments.format,
            storage_options=storage_options_of(arguments),
            progress=show,
        )
    return OpenedNow(opened, show.was_called)


def open_with_samples(arguments: argparse.Namespace) -> Opened:
    """Open the source, which must hold samples.

    Raises
    ------
    UsageError
        The source holds no sample.
    ShoalError
        See `shoal.indexing.open_source.open_source`.
    """
    opened = open_asked(arguments).opened
    if not opened.index.num_samples:
        msg = f"{printed(source_of(arguments))}: {counted(opened.index.num_shards, 'shard')} without a single sample"
        raise UsageError(msg, hint="`shoal info` shows what was met and is no sample")
    return opened
