"""Sequences packed by the numbers of a state, for commands without a call of `pack_sequences`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shoal.errors import StateError, UsageError
from shoal.order.position_subsets import NO_GAPS
from shoal.order.sequences.groupings import LengthBatches, Packing
from shoal.order.state_dict import LENGTHS, PACKED, State
from shoal.pipeline.sequence_arrays import TOKENS, PaddedFields, SequenceFields
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.resolved_sequences import ResolvedSequences
from shoal.stream.sequences.sequence_requests import SequenceRequest

_ANY_TOKEN = 0
_BY_COLUMN = ("by", "limits")


def of_documents(saved: State) -> State:
    """Return the state of the documents alone, without the packing."""
    return State(saved.epoch, 0, saved.seed, {n: v for n, v in saved.order.items() if n != PACKED}, saved.index)


def packed_as_saved(documents: ResolvedOrder | ResolvedMixture, saved: State, column: str) -> ResolvedSequences:
    """Return the sequences of a state, or of a certificate, of documents in this order.

    ``column`` of the index has the tokens of each document. The digest of lengths shows if separators follow documents.
    `StateError` if the state has an unknown packing, other lengths, or another order of the documents; `UsageError` if
    the column does not exist.
    """
    packing = dict(saved.order[PACKED])
    digest = packing.pop(LENGTHS, None)
    for request in _requests(packing, column):
        packed = ResolvedSequences(documents, request.packing, request.lengths_in(documents.parts))
        if packed.state_order[PACKED][LENGTHS] == digest:
            return packed.resumed(saved, NO_GAPS)
    msg = f"the documents of the state have other lengths than the column {column!r}"
    raise StateError(
        msg, hint="pass the column of the run as lengths=; otherwise the data or the tokenizer has changed"
    )


def _requests(arguments: dict[str, Any], column: str) -> list[SequenceRequest]:
    """Return the possible requests for a packing: without separators, and with them."""
    if batched_by := [name for name in _BY_COLUMN if name in arguments]:
        msg = f"the state counts batches of batch({batched_by[0]}=), and a state does not hold their columns"
        raise StateError(msg, hint="use the dataset of the run: `shoal trace --run MODULE:NAME`")
    try:
        if "buckets" in arguments:
            batches = LengthBatches(**{**arguments, "buckets": tuple(arguments["buckets"])})
            return [SequenceRequest(batches, PaddedFields(batches.padded), column)]
        packing = Packing(**arguments)
    except (TypeError, UsageError) as error:
        msg = f"the state has a packing that this version of shoal does not know: {arguments!r:.200} ({error})"
        raise StateError(msg, hint="the state was saved by another version of shoal: use that version") from None
    tokens = (TOKENS, replace(TOKENS, separator=_ANY_TOKEN))
    return [SequenceRequest(packing, SequenceFields(packing.length, each), column) for each in tokens]
