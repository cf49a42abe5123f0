"""Sequences that `shoal plan --pack-sequences` foresees: what packing makes of the documents of a dataset."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from shoal.cli import output
from shoal.errors import UsageError
from shoal.order.arrays.index_ranges import Runs
from shoal.order.position_subsets import WithoutGaps
from shoal.order.sequences.groupings import STRATEGIES, Packing
from shoal.order.sequences.packed_order import PackedOrder
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stream.sequences.sequence_requests import SequenceRequest

_MOST_DOCUMENTS = 1 << 21
_FEW_SEQUENCES = 1 << 16


def planned_sequences(arguments: argparse.Namespace, resolved: ResolvedOrder | None) -> dict[str, dict[str, float]]:
    """Return the sequences that each strategy makes, by its name: how many, how full, and documents that are cut.

    Epoch 0 is packed; of more than 2 million documents, those at the first positions, which stand for the rest.
    """
    length = arguments.pack_sequences
    if length is None:
        return {}
    if resolved is None:
        msg = "--pack-sequences packs documents by their lengths, and numbers alone have none"
        raise UsageError(msg, hint="give SOURCE, with a column of lengths in its index")
    found: dict[str, dict[str, float]] = {}
    documents = resolved.epoch(0)
    scale = max(1.0, documents.num_samples / _MOST_DOCUMENTS)
    if scale > 1.0:
        documents = WithoutGaps(documents, Runs.span(0, _MOST_DOCUMENTS))
    for strategy in STRATEGIES:
        request = SequenceRequest.packed(length, "tokens", strategy, arguments.lengths, None, "cut", None, 0, ())
        lengths = request.lengths_in([resolved])
        packed = PackedOrder(documents, lengths, Packing(length, strategy), seed=resolved.seed, epoch=0)
        num_tokens = num_cut = 0
        for start in range(0, packed.num_samples, _FEW_SEQUENCES):
            pieces = packed.pieces(packed.ids(start, min(start + _FEW_SEQUENCES, packed.num_samples)))
            num_tokens += int((pieces.stops - pieces.starts).sum())
            num_cut += int(np.count_nonzero((pieces.starts == 0) & (pieces.stops < lengths[pieces.ids])))
        if not packed.num_samples:
            msg = f"no document of the source has a token, by the column {arguments.lengths!r}"
            raise UsageError(msg, hint="--lengths names the column of their numbers of tokens")
        found[strategy] = {
            "num_sequences": round(scale * packed.num_samples),
            "filled": num_tokens / (length * packed.num_samples),
            "num_cut_documents": round(scale * num_cut),
            "documents_per_sequence": documents.num_samples / packed.num_samples,
        }
    return found


def show_sequences(sequences: dict[str, dict[str, float]], length: int, global_batch: int) -> None:
    """Print a line for each strategy."""
    output.say()
    output.say(f"sequences of {length:,} tokens, {global_batch:,} in a step:")
    for strategy, facts in sequences.items():
        output.say(f"  {strategy:9}  {told(facts, global_batch)}")


def told(facts: dict[str, Any], global_batch: int) -> str:
    """Return the facts of a strategy in words."""
    steps = facts["num_sequences"] // global_batch
    cut = facts["num_cut_documents"]
    return f"{facts['num_sequences']:,} sequences, {steps:,} steps, {facts['filled']:.2%} filled, {cut:,} documents cut"
