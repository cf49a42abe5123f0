"""The `shoal head` command: show the first samples of a dataset or of an order."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.cli import output
from shoal.cli.display.preview import json_value, preview, printable, size_of
from shoal.cli.options.argument_types import at_least_zero, sample_ids
from shoal.cli.options.source_options import add_json_argument, add_source_arguments
from shoal.cli.options.stream_options import (
    add_decode_argument,
    add_order_arguments,
    add_skip_argument,
    decoded,
    given_order_options,
    requested_dataset,
)
from shoal.errors import ShardError, ShoalError, UsageError
from shoal.index.table import check_ids
from shoal.stream.dataset import Dataset

_KEY = "__key__"
_AS_BYTES = "without --decode the bytes of the sample are shown"
_LEAST_PREVIEW_COLUMNS = 20


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
    add_json_argument(parser, 'print one JSON object per line, with {"base64": ...} for binary data')


def run(arguments: argparse.Namespace) -> int:
    """Show each sample as soon as it is read."""
    options = given_order_options(arguments) + (["--epoch"] if arguments.epoch is not None else [])
    if arguments.ids is not None and options:
        msg = f"{options[0]} chooses an order, but --ids names samples of any order"
        raise UsageError(msg, hint="leave out one of them")
    ids = arguments.ids
    num_first = arguments.n if ids is None and not options else None
    dataset = requested_dataset(arguments, in_order=bool(options), num_first=num_first)
    if ids is None:
        ids = dataset.ids(arguments.epoch or 0, 0, min(arguments.n, dataset.num_samples)).tolist()
    dataset = decoded(dataset, arguments)
    index = dataset.stream.spec.opened.index
    check_ids(index, np.array(ids, dtype=np.int64))
    num_shown = 0
    for sample_id in ids:
        try:
            sample = _read(dataset, sample_id)
        except ShardError as error:
            if arguments.on_error == "raise":
                raise
            output.complain(f"note: sample {sample_id} is skipped: {error.message}")
            continue
        num_shown += 1
        shard, first_byte, end_byte = index.place(sample_id)
        location = {
            "id": sample_id,
            "key": sample.pop(_KEY, None),
            "shard": shard,
            "first_byte": first_byte,
            "end_byte": end_byte,
        }
        if arguments.json:
            output.emit(json_value({**location, "fields": sample}), as_json=True)
        else:
            key = "" if location["key"] is None else f"  {printable(str(location['key']))}"
            heading = f"{sample_id}{key}  in {printable(shard)} [{first_byte}, {end_byte})"
            output.say("\n" * (num_shown > 1) + "\n".join([heading, *_field_lines(sample)]))
    return 0


def _read(dataset: Dataset, sample_id: int) -> dict[str, Any]:
    try:
        return dict(dataset[sample_id])
    except ShardError as error:
        if error.__cause__ is not None:  # the error of a decoder
            error.hint = _AS_BYTES
        raise
    except ShoalError:
        raise
    except Exception as error:  # decoders raise any type
        cause = " ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])[:1]])
        raise UsageError(f"sample {sample_id} cannot be decoded: {printable(cause)}", hint=_AS_BYTES) from error


def _field_lines(fields: Mapping[str, Any]) -> Sequence[str]:
    names = [printable(str(name)) for name in fields]
    sizes = [size_of(value) for value in fields.values()]
    name_width = max(map(len, names), default=0)
    size_width = max(map(len, sizes), default=0)
    columns = max(_LEAST_PREVIEW_COLUMNS, shutil.get_terminal_size().columns - name_width - size_width - 7)
    texts = [preview(str(name), value, columns=columns) for name, value in fields.items()]
    return [
        f"  {name:<{name_width}}  {size:>{size_width}}  {text}".rstrip()
        for name, size, text in zip(names, sizes, texts, strict=True)
    ]
