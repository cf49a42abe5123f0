"""The `shoal head` command: show the first samples of a dataset or of an order, in lines, as JSON, or as a page."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.cli import output
from shoal.cli.display.pages import typed_command, write_page
from shoal.cli.display.progress_bar import Progress
from shoal.cli.options.argument_types import at_least_zero, sample_ids
from shoal.cli.options.source_options import add_json_argument, add_source_arguments, source_of
from shoal.cli.options.stream_options import (
    add_decode_argument,
    add_order_arguments,
    add_skip_argument,
    decoded,
    given_order_options,
    requested_dataset,
)
from shoal.errors import ShardError, ShoalError, UsageError
from shoal.figures import counted
from shoal.index.table import check_ids
from shoal.storage.sources.source import printed
from shoal.stream.choosing.map_view import MapView
from shoal.stream.dataset import Dataset
from shoal.tools.samples.contact_sheet import ContactSheet
from shoal.tools.samples.preview import json_value, printable
from shoal.tools.samples.shown_samples import SOURCE_FIELD, ShownSample, ShownSamples

_AS_BYTES = "without --decode the bytes of the sample are shown"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    add_source_arguments(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("-n", type=at_least_zero, metavar="N", default=5, help="number of samples (default: 5)")
    which.add_argument("--ids", type=sample_ids, metavar="I,J,...", help="show the samples with these ids")
    add_decode_argument(parser)
    add_skip_argument(parser)
    add_order_arguments(parser, default="default: storage order")
    parser.add_argument("--epoch", type=at_least_zero, metavar="E", help="epoch of that order (default: 0)")
    text = "write an HTML page instead: a contact sheet with pictures and players"
    parser.add_argument("--page", "--html", metavar="FILE", help=text)
    add_json_argument(parser, 'print one JSON object per line, with {"base64": ...} for binary data')


def run(arguments: argparse.Namespace) -> int:
    """Show each sample as soon as it is read; a page when all are read."""
    if arguments.page is not None and arguments.json:
        raise UsageError("--page writes a page, and --json prints lines", hint="leave out one of them")
    dataset, ids = _requested(arguments)
    reader = _Reader(dataset, skips=arguments.on_error != "raise")
    if arguments.page is not None:
        write_page(arguments.page, _page(arguments, reader, ids))
        return 0
    num_shown = 0
    for sample_id in ids:
        sample = reader.sample(sample_id)
        if sample is None:
            continue
        num_shown += 1
        if arguments.json:
            output.emit(json_value(_record(sample)), as_json=True)
        else:
            lines = sample.lines(columns=shutil.get_terminal_size().columns)
            output.say("\n" * (num_shown > 1) + "\n".join(lines))
    return 0


def _requested(arguments: argparse.Namespace) -> tuple[Dataset, Sequence[int]]:
    """Return the dataset, decoded on request, and the ids of the samples to show."""
    options = given_order_options(arguments) + (["--epoch"] if arguments.epoch is not None else [])
    if arguments.ids is not None and options:
        msg = f"{options[0]} chooses an order, but --ids names samples of any order"
        raise UsageError(msg, hint="leave out one of them")
    ids: Sequence[int] | None = arguments.ids
    num_first = arguments.n if ids is None and not options else None
    dataset = requested_dataset(arguments, in_order=bool(options), num_first=num_first)
    if ids is None:
        ids = dataset.ids(arguments.epoch or 0, 0, min(arguments.n, dataset.num_samples)).tolist()
    dataset = decoded(dataset, arguments)
    check_ids(dataset.stream.spec.opened.index, np.array(ids, dtype=np.int64))
    return dataset, ids


class _Reader:
    """Samples of a dataset by id; with ``skips``, None for a damaged sample, with a note on stderr."""

    def __init__(self, dataset: Dataset, *, skips: bool) -> None:
        stream = dataset.stream
        self.samples = ShownSamples(MapView(stream.spec, stream.resolved, stream.cursor), stream.spec.opened)
        self._skips = skips

    def sample(self, sample_id: int) -> ShownSample | None:
        try:
            return self.samples.read(sample_id)
        except ShardError as error:
            if self._skips:
                output.complain(f"note: sample {sample_id} is skipped: {error.message}")
                return None
            if error.__cause__ is not None:  # the error of a decoder
                error.hint = _AS_BYTES
            raise
        except ShoalError:
            raise
        except Exception as error:  # decoders raise any type
            cause = " ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])[:1]])
            raise UsageError(f"sample {sample_id} cannot be decoded: {printable(cause)}", hint=_AS_BYTES) from error


def _page(arguments: argparse.Namespace, reader: _Reader, ids: Sequence[int]) -> str:
    samples = []
    with Progress(total=len(ids), label="reading samples") as progress:
        for sample_id in ids:
            if (sample := reader.sample(sample_id)) is not None:
                samples.append(sample)
            progress.advance()
    options = given_order_options(arguments)
    order = f"in the order of epoch {arguments.epoch or 0}" if options else "in storage order"
    about = f"{counted(len(samples), 'sample')}{'' if arguments.ids is not None else f', the first {order}'}"
    return ContactSheet(samples, about, printed(source_of(arguments))).page(made_by=typed_command(arguments.words))


def _record(sample: ShownSample) -> dict[str, Any]:
    """Return a sample and its place by name."""
    location = {"id": sample.sample_id, "key": sample.key, "shard": sample.shard}
    place = {"first_byte": sample.first_byte, "end_byte": sample.end_byte}
    source = {SOURCE_FIELD: sample.source} if sample.source else {}
    return {**location, **place, "fields": {**sample.fields, **source}}
