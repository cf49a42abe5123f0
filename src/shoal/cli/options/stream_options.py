"""Options of a stream: its order, decoding, packing of documents, and saved state."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from shoal.cli.options.argument_types import count, option_of
from shoal.cli.options.argument_types import order as order_text
from shoal.cli.options.source_options import names_mixture, open_with_samples, source_of, storage_options_of
from shoal.errors import StateError, UsageError
from shoal.formats.decoding.decoders import DECODERS
from shoal.formats.decoding.images import exact_size
from shoal.hints import did_you_mean
from shoal.order.registry import order_of_text
from shoal.order.state_dict import State
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.order_request import OrderRequest
from shoal.reading.resolved_order import Resolved, ResolvedOrder
from shoal.reading.resolved_sequences import ResolvedSequences
from shoal.storage.sources.source import printed
from shoal.stream.dataset import Dataset
from shoal.stream.dataset_spec import DatasetSpec
from shoal.stream.mixing.mixed_dataset import MixedDataset
from shoal.stream.open_dataset import open_dataset
from shoal.stream.sequences.sequence_requests import SequenceRequest
from shoal.stream.verbs.dataset_requests import order_request

_OPTIONS = ("order", "seed", "window", "chunk", "num_canonical_nodes", "chunks", "samples")
_MOST_STATE_BYTES = 1 << 20


def add_order_arguments(parser: argparse.ArgumentParser, *, default: str) -> None:
    """Declare the options of the order; ``default`` describes the order without options."""
    group = parser.add_argument_group("order", f"the arguments of Dataset.shuffle(); {default}")
    text = 'order, such as "block" or "block(chunks=64)" (default: window)'
    group.add_argument("--order", type=order_text, metavar="ORDER", help=text)
    group.add_argument("--seed", type=int, metavar="S", help="seed (default: 0)")
    group.add_argument("--window", metavar="BYTES", help="bytes mixed at a time, such as 16GiB (default: 512MiB)")
    group.add_argument("--chunk", metavar="BYTES", help="chunk size, such as 1MiB (default: a 1024th of the window)")
    group.add_argument("--num-canonical-nodes", type=int, metavar="C", help="parts of the dataset that mix separately")
    group.add_argument("--chunks", type=int, metavar="K", help="chunks of the window or block, instead of --window")
    group.add_argument("--samples", type=int, metavar="B", help="samples of the buffer (default: 1000)")


def given_order_options(arguments: argparse.Namespace) -> list[str]:
    """Return the given options of the order."""
    return [option_of(name) for name in _OPTIONS if getattr(arguments, name) is not None]


def requested_order(arguments: argparse.Namespace) -> OrderRequest:
    """Return the order of the options, by default the order of ``shuffle()``; refuse options of other orders."""
    text = arguments.order or "window"
    options = {name: getattr(arguments, name) for name in ("window", "chunk", "num_canonical_nodes")}
    numbers = {name: getattr(arguments, name) for name in ("chunks", "samples")}
    options |= {name: value for name, value in numbers.items() if value is not None}
    return order_request(order_of_text(text) if "(" in text else text, arguments.seed, options)


def requested_dataset(arguments: argparse.Namespace, *, in_order: bool = True, num_first: int | None = None) -> Dataset:
    """Open a dataset or mixture file, in the requested order or, if not ``in_order``, in storage order.

    ``num_first`` is passed to `open_requested`.
    """
    if names_mixture(arguments):
        return shuffled_mixture(arguments) if in_order else open_mixture(arguments)
    request = requested_order(arguments) if in_order else None
    return Dataset(DatasetSpec.of(open_with_samples(arguments, num_first=num_first), request))


def open_mixture(arguments: argparse.Namespace) -> MixedDataset:
    """Open the source, a mixture file."""
    index, options = getattr(arguments, "index", None), storage_options_of(arguments)
    dataset = open_dataset(source_of(arguments), split=arguments.split, index=index, storage_options=options)
    if not isinstance(dataset, MixedDataset):
        msg = f"{printed(source_of(arguments))} is not a mixture file: mixture files end with .yaml or .yml"
        raise UsageError(msg, hint="docs/mixture-files.md describes them")
    return dataset


def shuffled_mixture(arguments: argparse.Namespace) -> MixedDataset:
    """Open a mixture file in its order, or without an order in the file, in the order of the options."""
    return in_order_of(open_mixture(arguments), arguments)


def in_order_of(dataset: MixedDataset, arguments: argparse.Namespace) -> MixedDataset:
    """Return the mixture in the order of its file, or in the order of the options if the file has none."""
    if not getattr(dataset.stream.spec.request, "is_shuffled", False):
        return MixedDataset(dataset.stream.spec.in_order(requested_order(arguments)))
    if options := given_order_options(arguments):
        msg = f"{printed(source_of(arguments))} has an order, but {options[0]} asks for another order"
        raise UsageError(msg, hint="change it in the file")
    return dataset


def read_state(path: str) -> State:
    """Read a state from the JSON of ``ds.state_dict()``."""
    fields = read_saved(path, "state", "ds.state_dict()", most_bytes=_MOST_STATE_BYTES)
    try:
        return State.from_dict(fields)
    except StateError as error:
        raise StateError(f"{path}: {error.message}", hint=error.hint) from None


def read_saved(path: str, what: str, call: str, *, most_bytes: int) -> Any:
    """Read the JSON of the result of ``call``; raise `StateError` for other or larger files."""
    with Path(path).open("rb") as file:
        data = file.read(most_bytes + 1)
    try:
        return json.loads(data if len(data) <= most_bytes else b"")
    except (ValueError, RecursionError):
        msg = f"{path}: this is not a {what}; a {what} is a JSON object"
        raise StateError(msg, hint=f"write the file with json.dump({call}, file)") from None


def add_skip_argument(parser: argparse.ArgumentParser) -> None:
    """Declare ``--on-error``."""
    text = "raise an error for a damaged sample (default), or skip and count it"
    parser.add_argument("--on-error", choices=("raise", "skip"), default="raise", help=text)


def add_decode_argument(parser: argparse.ArgumentParser) -> None:
    """Declare ``--decode``, with an optional decoder of images, and ``--image-size``."""
    text = f"decode fields; images, audio or video only with one of {', '.join(DECODERS.own)}"
    parser.add_argument("--decode", nargs="?", const="", metavar="SPEC", type=_image_spec, help=text)
    text = "HEIGHTxWIDTH or side of decoded images"
    parser.add_argument("--image-size", metavar="PIXELS", type=_image_size, help=text)


def decoded(dataset: Dataset, arguments: argparse.Namespace) -> Dataset:
    """Return the dataset with the requested decoding."""
    spec: str | None = arguments.decode
    size: tuple[int, int] | None = arguments.image_size
    if spec is None and size is None:
        return dataset
    return dataset.decode(*[spec] if spec else [], size=size)


def _image_size(text: str) -> tuple[int, int]:
    sides = text.split("x")
    try:
        return exact_size([int(side) for side in sides] if len(sides) > 1 else int(text))
    except (ValueError, UsageError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size in pixels, such as 240x320 or 224") from None


def _image_spec(text: str) -> str:
    if text and text not in DECODERS:
        msg = f"{text!r} is none of {', '.join(DECODERS)}; {did_you_mean(text, DECODERS)}"
        msg += "put the dataset before --decode"
        raise argparse.ArgumentTypeError(msg)
    return text


def add_sequence_arguments(parser: argparse.ArgumentParser, *, batches: str) -> argparse._ArgumentGroup:
    """Declare the length of sequences and the column of lengths; ``batches`` is the option that counts sequences."""
    group = parser.add_argument_group("sequences of tokens, if SOURCE has documents")
    text = f"pack documents into sequences of LENGTH tokens; {batches} counts sequences"
    group.add_argument("--pack-sequences", type=count, metavar="LENGTH", help=text)
    text = "column of the index with the tokens of each document (default: num_tokens)"
    group.add_argument("--lengths", metavar="COLUMN", default="num_tokens", help=text)
    return group


def sequence_request(arguments: argparse.Namespace, strategy: str) -> SequenceRequest:
    """Return the request that packs documents of this column of lengths by a strategy."""
    return SequenceRequest.packed(
        arguments.pack_sequences, "tokens", strategy, arguments.lengths, None, "cut", None, 0, ()
    )


def packed_as_requested(documents: ResolvedOrder | ResolvedMixture, arguments: argparse.Namespace) -> Resolved:
    """Return the documents, packed into sequences if ``--pack-sequences`` is given."""
    if arguments.pack_sequences is None:
        return documents
    request = sequence_request(arguments, arguments.strategy)
    return ResolvedSequences(documents, request.packing, request.lengths_in(documents.parts))
