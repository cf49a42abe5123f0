"""Epochs of a dataset that grows: epochs before a border read the running dataset, later epochs the next dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.index.joined_index import JoinedIndex
from shoal.index.table import Index
from shoal.indexing.growing.growing_shards import Growth
from shoal.indexing.opened_dataset import Opened, OpenedDataset
from shoal.order.arrays.index_ranges import Runs
from shoal.order.position_subsets import Gaps
from shoal.order.protocol import BoundOrder
from shoal.order.state_dict import NextDataset, State, Tokenizers
from shoal.order.states.deals import Deal, RankPlace
from shoal.reading.resolved_epochs import BatchSegments, Length, Piece, Pieces, Piecewise, ResolvedEpochs, Source
from shoal.reading.resolved_order import Resolved, ResolvedOrder


class Generation(NamedTuple):
    """A dataset, ready for reading, and its resolved epochs."""

    opened: OpenedDataset
    resolved: Resolved


@dataclass(frozen=True)
class ResolvedGenerations(ResolvedEpochs[ResolvedOrder]):
    """The ``running`` dataset before the epoch ``border``, and the ``coming`` dataset from there on.

    Each has its own resolved order: a window in bytes becomes other integers for a larger dataset. Properties without
    an epoch are those of the coming dataset, which has the most samples; `in_epoch` gives the epochs of one dataset.
    """

    running: Generation
    coming: Generation
    border: int

    def in_epoch(self, epoch: int) -> Resolved:
        """Return the epochs of the dataset that this epoch reads."""
        return self._at(epoch).resolved

    def from_epoch(self, epoch: int) -> Resolved:
        """Return the epochs from this epoch on: of the coming dataset alone, from the border on."""
        return self if epoch < self.border else self.coming.resolved

    def _at(self, epoch: int) -> Generation:
        return self.running if epoch < self.border else self.coming

    # ---- of the coming dataset

    @property
    def parts(self) -> tuple[ResolvedOrder, ...]:
        """The resolved orders of the coming dataset."""
        return self.coming.resolved.parts

    @property
    def index(self) -> Index | JoinedIndex:
        """The index of the coming dataset."""
        return self.coming.resolved.sample_index

    @property
    def request(self) -> Any:
        """The request of the order, the same for both datasets."""
        request: Any = self.coming.resolved
        return request.request

    @property
    def num_samples(self) -> int:
        """Samples of an epoch of the coming dataset."""
        return self.coming.resolved.num_samples

    @property
    def state_order(self) -> Mapping[str, Any]:
        """Description of the order of the coming dataset."""
        return self.coming.resolved.state_order

    @property
    def gaps(self) -> Gaps:  # type: ignore[override]
        """Positions that are left out of some epochs, of either dataset."""
        return self.running.resolved.gaps.plus(self.coming.resolved.gaps)

    @property
    def deals(self) -> tuple[Deal, ...]:  # type: ignore[override]
        """Positions that ranks have taken already."""
        return self.running.resolved.deals + self.coming.resolved.deals

    @property
    def words(self) -> str:
        """Nothing: the source describes the samples."""
        return ""

    def all_samples(self, source: Source) -> OpenedDataset:  # noqa: ARG002
        """Return the coming dataset, which has the samples of both unless shards have left."""
        return self.coming.opened

    # ---- of both

    def __getstate__(self) -> dict[str, Any]:
        """Return both datasets and the border."""
        return dict(self.__dict__)

    def with_deals(self, deals: tuple[Deal, ...], gaps: Gaps | None = None) -> ResolvedGenerations:
        """Return these epochs with other deals and gaps in the epochs of both datasets."""
        running, coming = (
            each._replace(resolved=each.resolved.with_deals(deals, gaps)) for each in (self.running, self.coming)
        )
        return replace(self, running=running, coming=coming)

    def resumed(self, saved: State, gaps: Gaps) -> ResolvedGenerations:
        """Return these epochs with the numbers of a state in the dataset of its epoch."""
        if saved.epoch < self.border:
            running = self.running._replace(resolved=self.running.resolved.resumed(saved, gaps))
            coming = self.coming.resolved.with_deals((), gaps.plus(saved.gaps))
            return replace(self, running=running, coming=self.coming._replace(resolved=coming))
        return replace(self, coming=self.coming._replace(resolved=self.coming.resolved.resumed(saved, gaps)))

    def begin(self, reader: int, num_readers: int) -> None:
        """Begin background work of both datasets."""
        for each in (self.running, self.coming):
            each.resolved.begin(reader, num_readers)

    def growth(self) -> Growth | None:
        """Return None: both datasets are indexed."""
        return None

    def cached(
        self, opened: OpenedDataset, share: Callable[[Opened, ResolvedOrder, int | None], Opened]
    ) -> tuple[OpenedDataset, ResolvedGenerations]:
        """Return both datasets with a cache of this machine."""
        running, coming = (
            Generation(*each.resolved.cached(each.opened, share)) for each in (self.running, self.coming)
        )
        shared = replace(self, running=running, coming=coming)
        return (running if opened is self.running.opened else coming).opened, shared

    # ---- of the dataset of an epoch

    def untouched(self, epoch: int) -> BoundOrder:
        """Return the order of one epoch, gaps included."""
        return self.in_epoch(epoch).untouched(epoch)

    def epoch(self, epoch: int) -> BoundOrder:
        """Return the order of one epoch without its gaps."""
        return self.in_epoch(epoch).epoch(epoch)

    def left(self, epoch: int) -> Runs | None:
        """Return the positions of an epoch that remain; None means all."""
        return self.in_epoch(epoch).left(epoch)

    def first(self, source: Source, epoch: int = 0) -> Piece[ResolvedOrder]:  # noqa: ARG002
        """Return the first piece of an epoch."""
        return self.in_epoch(epoch).first(self._at(epoch).opened, epoch)

    def whole(self, opened: OpenedDataset, epoch: int) -> Piece[ResolvedOrder]:  # noqa: ARG002
        """Return all samples of an epoch."""
        return self.in_epoch(epoch).whole(self._at(epoch).opened, epoch)

    def pieces(self, opened: OpenedDataset, epoch: int, piecewise: Piecewise) -> Pieces[ResolvedOrder]:  # noqa: ARG002
        """Return the pieces of an epoch in turn."""
        return self.in_epoch(epoch).pieces(self._at(epoch).opened, epoch, piecewise)

    def knows_end(self, epoch: int) -> bool:
        """Return True if the samples of an epoch are counted."""
        return self.in_epoch(epoch).knows_end(epoch)

    def length(self, epoch: int) -> Length:
        """Return the number of positions of an epoch, gaps included."""
        return self.in_epoch(epoch).length(epoch)

    def most_until_any(self, epoch: int, number: int) -> int:
        """Return a number of positions that certainly contain every sample of an epoch."""
        return self.in_epoch(epoch).most_until_any(epoch, number)

    def num_positions(self, epoch: int) -> int:
        """Return the samples of one epoch, gaps included."""
        return self.in_epoch(epoch).num_positions(epoch)

    def num_rows(self, epoch: int) -> int:
        """Return the rows of all batches of one epoch."""
        return self.in_epoch(epoch).num_rows(epoch)

    def num_samples_of(self, epoch: int) -> int:
        """Return the samples of one epoch without its gaps."""
        return self.in_epoch(epoch).num_samples_of(epoch)

    def number_of(self, epoch: int, position: int) -> int:
        """Return the number of positions of an epoch before this position, without gaps."""
        return self.in_epoch(epoch).number_of(epoch, position)

    def position_of(self, epoch: int, number: int) -> int:
        """Return the position after some positions of an epoch without gaps."""
        return self.in_epoch(epoch).position_of(epoch, number)

    def span_of(self, epoch: int, first: int, stop: int) -> tuple[int, int]:
        """Return the span of positions of some numbers."""
        return self.in_epoch(epoch).span_of(epoch, first, stop)

    def why_uncounted(self, epoch: int, world_size: int) -> str:
        """Return why ranks cannot agree on the samples of an epoch."""
        return self.in_epoch(epoch).why_uncounted(epoch, world_size)

    def samples_of(self, epoch: int, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of the stored samples for ids of an epoch's order."""
        return self.in_epoch(epoch).samples_of(epoch, ids)

    def segments_in(self, epoch: int, sequences: NDArray[np.int64]) -> BatchSegments:
        """Return the pieces of documents in some sequences of an epoch."""
        packed: Any = self.in_epoch(epoch)
        segments: BatchSegments = packed.segments_in(epoch, sequences)
        return segments

    def state_at(
        self, epoch: int, number: int, place: RankPlace | None = None, *, tokenizers: Tokenizers | None = None
    ) -> dict[str, Any]:
        """Return the state of the dataset of an epoch; before the border, the state names the coming dataset."""
        state = self.in_epoch(epoch).state_at(epoch, number, place, tokenizers=tokenizers)
        if epoch >= self.border:
            return state
        coming = self.coming.resolved
        names = {name: index.fingerprint for name, index in self.coming.opened.indexes.items()}
        return replace(
            State.from_dict(state), following=NextDataset(self.border, names, coming.identity)
        ).to_dict()

    def segments_of_state(self, epoch: int, position: int, *, is_whole: bool = False) -> str:
        """Return the identity of the samples up to a position, for the growing order."""
        return self.in_epoch(epoch).segments_of_state(epoch, position, is_whole=is_whole)

    def __repr__(self) -> str:
        """Return the orders of both datasets."""
        return f"{self.running.resolved!r}\nfrom epoch {self.border} on: {self.coming.resolved!r}"
