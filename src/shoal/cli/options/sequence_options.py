"""Options for documents that are packed: arguments of `Dataset.pack_sequences` by which the sequences follow."""

from __future__ import annotations

import argparse

from shoal.cli.options.argument_types import count
from shoal.order.sequences.groupings import STRATEGIES
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.resolved_order import Resolved, ResolvedOrder
from shoal.reading.resolved_sequences import ResolvedSequences
from shoal.stream.sequences.sequence_requests import SequenceRequest


def add_sequence_arguments(parser: argparse.ArgumentParser, *, batches: str) -> argparse._ArgumentGroup:
    """Declare the length of sequences and the column of lengths; ``batches`` is the option that counts sequences."""
    group = parser.add_argument_group("sequences of tokens, if SOURCE has documents")
    text = f"pack documents into sequences of so many tokens; {batches} counts sequences"
    group.add_argument("--pack-sequences", type=count, metavar="LENGTH", help=text)
    text = "column of the index with the tokens of each document (default: num_tokens)"
    group.add_argument("--lengths", metavar="COLUMN", default="num_tokens", help=text)
    return group


def add_strategy_argument(group: argparse._ArgumentGroup) -> None:
    """Declare the strategy of packing."""
    text = "strategy of --pack-sequences (default: concat); a --state says by itself how documents were packed"
    group.add_argument("--strategy", choices=tuple(STRATEGIES), default="concat", help=text)


def packed_as_asked(documents: ResolvedOrder | ResolvedMixture, arguments: argparse.Namespace) -> Resolved:
    """Return the sequences of documents in this order, or the documents if they are not to be packed."""
    length = arguments.pack_sequences
    if length is None:
        return documents
    request = SequenceRequest.packed(
        length, "tokens", arguments.strategy, arguments.lengths, None, "cut", None, 0, ()
    )  # fmt: skip
    return ResolvedSequences(documents, request.packing, request.lengths_in(documents.parts))
