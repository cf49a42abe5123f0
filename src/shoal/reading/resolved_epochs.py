"""The epochs of a dataset: positions, lengths, states, and the parts and pieces that are read.

A dataset is read in parts, each with its own resolved order; most datasets have one part. An epoch is read in pieces;
most epochs are one piece, which is known from the start.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from shoal.index.joined_index import JoinedIndex
from shoal.index.table import Index
from shoal.indexing.growing.growing_shards import Growth
from shoal.indexing.opened_dataset import Known, Opened, OpenedDataset
from shoal.order.arrays.index_ranges import Runs
from shoal.order.mixture.source_schedule import SequenceChange
from shoal.order.position_subsets import Gaps, WithoutGaps, left_beside, number_in, position_in, span_in
from shoal.order.protocol import BoundOrder
from shoal.order.state_dict import Identity, State, Tokenizers
from shoal.order.states.deals import Deal, RankPlace, settled, taken_by
from shoal.order.weighed_order import WeighedOrder
from shoal.plugins.displays import as_html
from shoal.storage.chunk_cache.chunk_cache import ChunkCache

PartT = TypeVar("PartT")


class Source(Protocol):
    """Shards that have an index, or get one when `whole` is read."""

    @property
    def whole(self) -> OpenedDataset:
        """All shards with their index."""

    def words(self, num_samples: Callable[[], str]) -> str:
        """Return a description of the shards; ``num_samples`` counts their samples, which may take long."""

    @property
    def depth(self) -> int:
        """Depth of nested joins; 0 for one dataset."""

    @property
    def indexes(self) -> Mapping[str, Index | None]:
        """The index of each part by name, without waiting; None if it is not made yet."""

    @property
    def caches(self) -> tuple[ChunkCache | None, ...]:
        """The cache of each part."""


class Length(NamedTuple):
    """The samples of an epoch over all ranks; an estimate has a standard error and its grounds in words."""

    num_samples: int
    error: int = 0
    words: str = ""


class BatchSegments(NamedTuple):
    """The pieces of documents in the sequences of a batch, in order; all of shape (num_segments,).

    Attributes
    ----------
    rows
        The row of the batch that holds each piece: a sequence, or the batch itself if documents are batched by length.
    segments
        The number of each piece in its row, from 1, as in ``segment_ids``.
    ids
        The sample id of its document.
    starts, stops
        The tokens of its document ``[start, stop)``.
    """

    rows: NDArray[np.int64]
    segments: NDArray[np.int64]
    ids: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]


class ResolvedEpochs(ABC, Generic[PartT]):
    """Epochs of ``num_samples`` positions, without ``gaps`` and without positions that ``deals`` have taken.

    ``parts`` are the resolved orders of the datasets that are read. Every kind also has the ``index`` of its stored
    samples, and the ``request`` of its order.
    """

    gaps: Gaps
    deals: tuple[Deal, ...]
    _lefts: dict[int, Runs | None]
    weights: NDArray[np.integer[Any]] | None = None
    """The weight of each sample by id, for ranks that share global batches by weight."""

    @property
    @abstractmethod
    def parts(self) -> tuple[PartT, ...]:
        """The datasets that are read, in the order of their sample ids."""

    @property
    def sample_index(self) -> Index | JoinedIndex:
        """The index of the stored samples, waiting until it is made."""
        index: Index | JoinedIndex = cast("Any", self).index
        return index

    @property
    @abstractmethod
    def num_samples(self) -> int:
        """Samples of an epoch, over all ranks, including gaps."""

    @property
    def seed(self) -> int:
        """Seed of the order."""
        return int(cast("Any", self).request.seed)

    @property
    def fingerprint(self) -> str:
        """Identity of the dataset."""
        return self.sample_index.fingerprint

    @property
    def identity(self) -> Identity:
        """The sizes by which the dataset is found again where more shards exist, by source."""
        index = self.sample_index
        return identity_of({"": index} if isinstance(index, Index) else dict(zip(index.names, index.parts, strict=True)))

    @property
    @abstractmethod
    def state_order(self) -> Mapping[str, Any]:
        """Description of the order for a state: two streams with equal values and seeds have equal orders."""

    @abstractmethod
    def untouched(self, epoch: int) -> BoundOrder:
        """Return the order of one epoch, gaps included."""

    def with_deals(self, deals: tuple[Deal, ...], gaps: Gaps | None = None) -> Self:
        """Return these epochs with other deals, and with other gaps if they are given."""
        changed: Any = replace(cast("Any", self), deals=deals, gaps=self.gaps if gaps is None else gaps)
        return cast("Self", changed)

    @abstractmethod
    def resumed(self, saved: State, gaps: Gaps) -> Self:
        """Return this order with the parameters of a state, and with ``gaps`` in addition to the gaps of the state.

        Raises `StateError`: the state is of another order or dataset.
        """

    def _repr_html_(self) -> str:
        return as_html("order", self)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields to pickle for processes; caches are left out: they are large and quickly refilled."""
        columns: Any = fields(cast("Any", self))
        return {field.name: self.__dict__[field.name] if field.init else field.default_factory() for field in columns}

    @property
    def numbering(self) -> str:
        """Identity of the numbering of samples by ids."""
        return self.fingerprint

    @property
    def words(self) -> str:
        """The samples in words, if the source does not describe them."""
        return ""

    @property
    def later_changes(self) -> tuple[SequenceChange, ...]:
        """Changes of the order at given sequences."""
        return ()

    def with_later_changes(self, changes: tuple[SequenceChange, ...]) -> Self:  # noqa: ARG002
        """Return these epochs with the changes of weights, if the order has any."""
        return self

    def num_ids_in(self, state_order: Mapping[str, Any]) -> int:  # noqa: ARG002
        """Return the number of sample ids that a state of these epochs knows."""
        return self.sample_index.num_samples

    def knows_end(self, epoch: int) -> bool:  # noqa: ARG002
        """Return False if the samples of an epoch cannot all be counted yet."""
        return True

    def length(self, epoch: int) -> Length:
        """Return the number of positions of an epoch, gaps included, or an estimate; returns almost at once."""
        return Length(self.num_positions(epoch))

    def most_until_any(self, epoch: int, number: int) -> int:  # noqa: ARG002
        """Return a number of positions, from this position on, that certainly contain every sample of an epoch."""
        return self.num_samples_of(epoch)

    def begin(self, reader: int, num_readers: int) -> None:
        """Begin background work for one of several readers."""

    def growth(self) -> Growth | None:
        """Return the progress of indexing; None if all shards are indexed before they are read."""
        return None

    def cached(
        self, opened: OpenedDataset, share: Callable[[Opened, PartT, int | None], Opened]
    ) -> tuple[OpenedDataset, Self]:
        """Return the first piece and these epochs with a cache for each part.

        ``share(part, order, window_bytes)`` adds the cache; without ``window_bytes``, the order knows its window.
        """
        parts = zip(opened.parts, self.parts, strict=True)
        return opened.with_parts(tuple(share(part, order, None) for part, order in parts)), self

    def adopted(self, checkpoint: Mapping[str, Any]) -> tuple[Self, int, int] | None:  # noqa: ARG002
        """Return the order, epoch and position where a run of another library continues; None if unknown.

        Raises `StateError`: the checkpoint comes from the library of this order, but has another seed or order.
        """
        return None

    def in_epoch(self, epoch: int) -> ResolvedEpochs[PartT]:  # noqa: ARG002
        """Return the epochs of the dataset that this epoch reads: these epochs, unless the dataset grows."""
        return self

    def from_epoch(self, epoch: int) -> ResolvedEpochs[PartT]:  # noqa: ARG002
        """Return the epochs from this epoch on; a dataset that grows forgets earlier datasets."""
        return self

    def first(self, source: Source, epoch: int = 0) -> Piece[PartT]:  # noqa: ARG002
        """Return the first piece of an epoch, waiting until it can be read."""
        return Piece(source.whole, self, is_last=True)

    def all_samples(self, source: Source) -> OpenedDataset:
        """Return the dataset whose samples have the ids of these epochs, waiting until it is indexed."""
        return source.whole

    def whole(self, opened: OpenedDataset, epoch: int) -> Piece[PartT]:  # noqa: ARG002
        """Return all samples of an epoch, given the first piece; wait until all can be read."""
        return Piece(opened, self, is_last=True)

    def pieces(self, opened: OpenedDataset, epoch: int, piecewise: Piecewise) -> Pieces[PartT]:  # noqa: ARG002
        """Return the pieces of an epoch in turn, given the first piece."""
        return Pieces(self.whole(opened, epoch))

    def num_positions(self, epoch: int) -> int:  # noqa: ARG002
        """Return the samples of one epoch, over all ranks, including gaps; epochs of mixtures may differ."""
        return self.num_samples

    def num_rows(self, epoch: int) -> int:
        """Return the rows of all batches of one epoch, over all ranks, including gaps."""
        return self.num_positions(epoch)

    def why_uncounted(self, epoch: int, world_size: int) -> str:  # noqa: ARG002
        """Return why ranks cannot agree on the samples of an epoch, with a remedy; "" if they can."""
        return ""

    def num_samples_of(self, epoch: int) -> int:
        """Return the number of samples of one epoch, over all ranks, without its gaps."""
        left = self.left(epoch)
        return self.num_positions(epoch) if left is None else len(left)

    def number_of(self, epoch: int, position: int) -> int:
        """Return the number of positions of an epoch before this position, without gaps, as iterators count."""
        return number_in(self.left(epoch), position)

    def position_of(self, epoch: int, number: int) -> int:
        """Return the position after the first ``number`` positions of an epoch without gaps, as states record it."""
        return position_in(self.left(epoch), number, self.num_positions(epoch))

    def span_of(self, epoch: int, first: int, stop: int) -> tuple[int, int]:
        """Return the span of positions of the numbers ``[first, stop)``, gaps between them included."""
        return span_in(self.left(epoch), first, stop)

    def left(self, epoch: int) -> Runs | None:
        """Return the positions of an epoch that are neither gaps nor dealt already; None means all positions."""
        deals = [deal for deal in self.deals if deal.epoch == epoch]
        if not deals:
            return self.gaps.left(epoch, self.num_positions(epoch))
        if epoch not in self._lefts:
            taken = taken_by(settled(deals, self.untouched(epoch)))
            self._lefts[epoch] = left_beside(self.gaps.of_epoch(epoch), taken, self.num_positions(epoch))
        return self._lefts[epoch]

    def epoch(self, epoch: int) -> BoundOrder:
        """Return the order of one epoch without its gaps, renumbered from 0; see `untouched`."""
        left, order = self.left(epoch), self.untouched(epoch)
        order = order if self.weights is None else WeighedOrder(order, self.weights)
        return order if left is None else WithoutGaps(order, left)

    def samples_of(self, epoch: int, ids: NDArray[np.int64]) -> NDArray[np.int64]:  # noqa: ARG002
        """Return the ids of the stored samples for ids of an epoch's order: the documents of sequences."""
        return ids

    def state_at(
        self, epoch: int, number: int, place: RankPlace | None = None, *, tokenizers: Tokenizers | None = None
    ) -> dict[str, Any]:
        """Return the state of a run that has delivered ``number`` samples of an epoch, not counting gaps.

        ``place`` is the place of the rank, if ranks fill their batches.
        """
        position = self.position_of(epoch, number)
        deals = tuple(deal for deal in self.deals if deal.epoch >= epoch)
        if place is not None:
            deals += tuple(self._deals_of(place))
        segments = self.segments_of_state(epoch, position, is_whole=bool(deals))
        terms = (self.seed, self.state_order, self.fingerprint, self.gaps, deals, segments, tokenizers or {})
        return State(epoch, position, *terms, identity=self.identity).to_dict()

    def segments_of_state(self, epoch: int, position: int, *, is_whole: bool = False) -> str:  # noqa: ARG002
        """Return the identity of the samples up to a position, or of all; "" if the fingerprint identifies them."""
        return ""

    def _deals_of(self, place: RankPlace) -> Iterator[Deal]:
        partition, rank = place.partition, place.rank
        only, dealt_before = partition.world_size == 1, {deal.epoch for deal in self.deals}
        for epoch, start in sorted(place.starts.items()):
            if start.has_taken or not only or epoch in dealt_before:  # else the position is enough
                terms = (epoch, self.position_of(epoch, start.number), partition.global_batch, partition.world_size)
                sequences = () if partition.packing is None else (start.sequences,)
                dealt = (self.gaps.of_epoch(epoch), None if only else rank, partition.packing, sequences)
                yield Deal(*terms, (start.taken,), *dealt)


def identity_of(indexes: Mapping[str, Index]) -> Identity:
    """Return the sizes by which datasets are found again, by source."""
    names = {name: Known.of(index).snapshot for name, index in indexes.items()}
    shards = {name: index.num_shards for name, index in indexes.items()}
    return Identity(shards, {name: snapshot for name, snapshot in names.items() if snapshot})


@dataclass(frozen=True, slots=True)
class Piece(Generic[PartT]):
    """Samples of an epoch that can be read now: indexed shards and their order; the last piece ends the epoch."""

    opened: OpenedDataset
    resolved: ResolvedEpochs[PartT]
    is_last: bool


class Piecewise(NamedTuple):
    """A reader of pieces, one of ``num_readers`` that share background work.

    ``counters`` count the waiting; ``is_stopped`` returns True once nobody waits.
    """

    counters: Any
    memory_limit_bytes: int | None
    reader: int
    num_readers: int
    is_stopped: Callable[[], bool]


class Pieces(Generic[PartT]):
    """The pieces of an epoch in turn: a single piece; subclasses have several pieces, and wait until each is ready."""

    is_ready = True
    """True if the first piece is ready."""

    def __init__(self, whole: Piece[PartT]) -> None:
        self._whole = whole

    def upto(self, position: int, *, read_before: int) -> Piece[PartT]:  # noqa: ARG002
        """Return a piece with this position, once it can be read; positions before ``read_before`` are done."""
        return self._whole

    def whole(self) -> Piece[PartT]:
        """Return all of the epoch, waiting until it can be read."""
        return self._whole

    def begun(self) -> None:
        """Record that the first batch of the newest piece was made."""

    def ended(self) -> None:
        """Record that nobody reads the newest piece any more."""
