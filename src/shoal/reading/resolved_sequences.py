"""Sequences and batches by length, with the order of their documents resolved: epochs, states, and pieces."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.errors import StateError, UsageError
from shoal.index.joined_index import JoinedIndex
from shoal.index.table import Index
from shoal.order.mixture.source_schedule import SequenceChange
from shoal.order.position_subsets import NO_GAPS, Gaps
from shoal.order.sequences.groupings import RowArguments
from shoal.order.sequences.packed_order import OrderOfPieces
from shoal.order.state_dict import CHANGES, LENGTHS, PACKED, State
from shoal.order.states.deals import Deal
from shoal.reading.mixture.mix_request import MixRequest
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.mixture.weights_by_sequence import SequenceEpochs, changes_adopted, changes_in_state
from shoal.reading.order_request import OrderRequest
from shoal.reading.resolved_epochs import BatchSegments, ResolvedEpochs
from shoal.reading.resolved_order import ResolvedOrder, keep_newest


class OrdersOfPieces(Protocol):
    """The orders of sequences, or of batches, of every epoch."""

    def order(self, epoch: int) -> OrderOfPieces:
        """Return the order of an epoch."""


@dataclass(frozen=True)
class ResolvedSequences(ResolvedEpochs[ResolvedOrder]):
    """Documents in their resolved order, packed into sequences or batches, which are the samples of these epochs.

    ``lengths`` has the tokens of each document by id, separators included; for batches by column, the number of its
    group. ``gaps`` and ``deals`` are as in `ResolvedOrder`, but count sequences. ``orders`` makes the orders of epochs.
    """

    documents: ResolvedOrder | ResolvedMixture
    packing: RowArguments
    lengths: NDArray[np.integer[Any]]
    gaps: Gaps = NO_GAPS
    deals: tuple[Deal, ...] = ()
    orders: Callable[..., OrdersOfPieces] = SequenceEpochs
    _epochs: dict[int, OrderOfPieces] = field(default_factory=dict, init=False, repr=False, compare=False)
    _lefts: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def num_samples(self) -> int:
        """Sequences of the first epoch; others differ by a few (`num_positions`)."""
        return self.num_positions(0)

    def num_positions(self, epoch: int) -> int:
        """Return the sequences of one epoch, over all ranks, including gaps."""
        return self.untouched(epoch).num_samples

    def num_rows(self, epoch: int) -> int:
        """Return the rows of all batches of one epoch: sequences, or documents that are batched by length."""
        order = self.untouched(epoch)
        return len(order.pieces(np.arange(order.num_samples)).ids) if self.packing.alike else order.num_samples

    @property
    def request(self) -> OrderRequest | MixRequest:
        """The requested order of the documents."""
        return self.documents.request

    @property
    def index(self) -> Index | JoinedIndex:
        """The index of the documents."""
        return self.documents.index

    def documents_in(self, num_sequences: int) -> int:
        """Return the approximate number of documents in this many sequences."""
        return max(1, round(num_sequences * self.documents.num_samples / max(1, self.num_samples)))

    def samples_of(self, epoch: int, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the document id of each piece in some sequences of an epoch, in order."""
        return self.segments_in(epoch, ids).ids

    def segments_in(self, epoch: int, sequences: NDArray[np.int64]) -> BatchSegments:
        """Return the pieces of documents in some sequences of an epoch, in order."""
        pieces = self.untouched(epoch).pieces(sequences)
        counts = np.diff(pieces.first)
        segments = np.arange(len(pieces.ids)) - np.repeat(pieces.first[:-1], counts) + 1
        rows, lengths = np.repeat(np.arange(len(counts)), counts), self.lengths[pieces.ids].astype(np.int64)
        return BatchSegments(rows, segments, pieces.ids, pieces.starts, np.minimum(pieces.stops, lengths))

    @property
    def parts(self) -> tuple[ResolvedOrder, ...]:
        """The datasets that are read."""
        return self.documents.parts

    def untouched(self, epoch: int) -> OrderOfPieces:
        """Return the order of the sequences of one epoch; two are cached. O(documents) at first."""
        order = self._epochs.get(epoch)
        if order is None:
            order = self._orders.order(epoch)
            if not order.num_samples and (num_documents := self.documents.num_positions(epoch)):
                words, hint = self.packing.none_made
                msg = f"{self.packing.verb}() makes {words.format(num_documents)}"
                raise UsageError(msg, hint=hint)
            keep_newest(self._epochs, epoch, order)
        return order

    @property
    def changes(self) -> tuple[SequenceChange, ...]:
        """Changes of weights at given sequences."""
        return self.documents.later_changes

    @cached_property
    def _orders(self) -> OrdersOfPieces:
        return self.orders(self.documents, self.lengths, self.packing, self.changes)

    @cached_property
    def state_order(self) -> Mapping[str, Any]:
        """Description of the order for a state: the order of the documents, their lengths, and the packing."""
        changes = {CHANGES: changes_in_state(self.changes)} if self.changes else {}
        return {**self.documents.state_order, PACKED: self._packed_as(len(self.lengths)) | changes}

    def _packed_as(self, num_ids: int) -> dict[str, Any]:
        """Return the packing, and a digest of the first lengths, which added sources do not change."""
        digest = hashlib.blake2b(self.lengths[:num_ids].astype("<i8").tobytes(), digest_size=8).hexdigest()
        return {**self.packing.to_dict(), LENGTHS: digest}

    def resumed(self, saved: State, gaps: Gaps) -> ResolvedSequences:
        """Return this order with the parameters of a state, and with ``gaps`` in addition to the gaps of the state."""
        order = {name: value for name, value in saved.order.items() if name != PACKED}
        if PACKED not in saved.order:
            msg = "the state is of documents, but this stream yields sequences"
            raise StateError(msg, hint=f"a state of the dataset before {self.packing.verb}() resumes that dataset")
        packed = dict(saved.order[PACKED]) if isinstance(saved.order[PACKED], Mapping) else {}
        changes = changes_adopted(self.changes, packed.pop(CHANGES, []), (saved.epoch, saved.position))
        changed = replace(self, documents=self.documents.with_later_changes(changes))
        num_begun = changed.untouched(saved.epoch).documents_before(saved.position)
        begun = min(num_begun, self.documents.num_positions(saved.epoch))
        documents = changed.documents.resumed(replace(saved, position=begun, order=order, gaps=NO_GAPS), NO_GAPS)
        resumed = replace(changed, documents=documents, gaps=gaps.plus(saved.gaps), deals=())
        # The documents have compared their order; a mixture up to this position, and without sources added later.
        num_ids = documents.num_ids_in(order)
        replace(saved, order={PACKED: packed}).check(
            seed=resumed.seed,
            order={PACKED: self._packed_as(num_ids)},
            index=saved.index,
            num_samples=resumed.num_positions(saved.epoch),
        )
        return resumed

    @property
    def grouping(self) -> str:
        """The call that groups the documents."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.packing.to_dict().items())
        return f"{self.packing.verb}({arguments})"

    def __repr__(self) -> str:
        """Return the order of the documents, and the packing."""
        return f"{self.documents!r}\n.{self.grouping}"
