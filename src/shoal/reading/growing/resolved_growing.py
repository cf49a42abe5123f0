"""The growing order of a dataset: its epochs, its states, and the pieces of the first epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, cast

from shoal.errors import StateError, UsageError
from shoal.figures import parse_bytes
from shoal.index.table import Index
from shoal.indexing.growing.growing_shards import GrowingShards, Growth
from shoal.indexing.growing.unindexed import Unindexed
from shoal.indexing.opened_dataset import Opened, OpenedDataset
from shoal.order.arrays.index_ranges import Runs
from shoal.order.position_subsets import NO_GAPS, Gaps
from shoal.order.protocol import BoundOrder
from shoal.order.state_dict import Identity, State
from shoal.order.states.deals import Deal
from shoal.order.window.sizing_by_bytes import DEFAULT_WINDOW_BYTES
from shoal.reading.growing.pieces_once_indexed import FirstSegments, GrowingPieces
from shoal.reading.growing.resolved_segments import Growing, ResolvedSegments
from shoal.reading.order_request import OrderRequest, Selection
from shoal.reading.resolved_epochs import Length, Piece, Pieces, Piecewise, ResolvedEpochs, Source
from shoal.reading.resolved_order import ResolvedOrder, can_spill, resolve


@dataclass(frozen=True)
class ResolvedGrowing(ResolvedEpochs[ResolvedOrder]):
    """A dataset in the growing order; counting its samples waits until all shards are indexed.

    ``request`` is the request of a window. ``delivered``, ``gaps`` and ``deals`` are as in `ResolvedOrder`. ``loaded``
    identifies the first segments in a loaded state, and is compared once they are indexed.
    """

    growing: GrowingShards
    request: OrderRequest
    delivered: Runs | None = None
    gaps: Gaps = NO_GAPS
    deals: tuple[Deal, ...] = ()
    loaded: str = ""
    _epochs: dict[bool, ResolvedOrder] = field(default_factory=dict, init=False, repr=False, compare=False)
    _lefts: dict[int, Runs | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    _segments: dict[int, ResolvedOrder] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def num_samples(self) -> int:
        """Samples of an epoch, over all ranks, including gaps."""
        return self.index.num_samples if self.delivered is None else len(self.delivered)

    @property
    def index(self) -> Index:
        """The index of all shards, in the permuted order."""
        return self.growing.whole.index

    @property
    def parts(self) -> tuple[ResolvedOrder, ...]:
        """The window over all shards: the order of later epochs."""
        return (self.of_epoch(1),)

    @property
    def fingerprint(self) -> str:
        """Identity of the listing."""
        return self.growing.fingerprint

    @property
    def identity(self) -> Identity:
        """The number of listed shards."""
        return Identity({"": len(self.growing.shard_bytes)})

    @property
    def numbering(self) -> str:
        """Identity of the numbering of samples: the seed permutes the shards of the listing."""
        return f"{self.fingerprint}-{self.seed}"

    def of_epoch(self, epoch: int) -> ResolvedOrder:
        """Return the order of an epoch over all shards: segment by segment in the first epoch, then a window."""
        is_first = epoch == 0
        self.check_loaded(self.growing.num_segments)
        resolved = self._epochs.get(is_first)
        if resolved is None:
            opened = self.growing.whole
            terms = (opened.index, self.request, None, self.delivered, self.gaps, self.deals, can_spill(opened))
            resolved = ResolvedOrder(*terms)
            if is_first:
                resolved = ResolvedSegments(*terms, borders=tuple(self.growing.borders))
            self._epochs[is_first] = resolved
        return resolved

    @property
    def words(self) -> str:
        """The shards, and the number of indexed ones."""
        return self.growing.summary

    def growth(self) -> Growth:
        """Return the progress of indexing."""
        return self.growing.growth()

    def cached(
        self, opened: OpenedDataset, share: Callable[[Opened, ResolvedOrder, int | None], Opened]
    ) -> tuple[OpenedDataset, ResolvedGrowing]:
        """Return the first segment, and these epochs, with a cache of this machine."""
        shared = share(opened.parts[0], self._upto(1)[1], self.growing.window_bytes)
        return shared, replace(self, growing=self.growing.with_cache(shared.cache))

    def begin(self, reader: int, num_readers: int) -> None:
        """Begin to index as one of several readers, unless this process has begun."""
        self.growing.begin(reader, num_readers)

    def first(self, source: Source, epoch: int = 0) -> Piece[ResolvedOrder]:  # noqa: ARG002
        """Return the first segment, waiting until it is indexed."""
        return Piece(*self._upto(1), is_last=self.growing.num_segments == 1)

    def all_samples(self, source: Source) -> OpenedDataset:  # noqa: ARG002
        """Return the shards in the permuted order."""
        return self.growing.whole

    def whole(self, opened: OpenedDataset, epoch: int) -> Piece[ResolvedOrder]:  # noqa: ARG002
        """Return all shards, waiting until they are indexed."""
        return Piece(self.growing.whole, self.of_epoch(epoch), is_last=True)

    def pieces(self, opened: OpenedDataset, epoch: int, piecewise: Piecewise) -> Pieces[ResolvedOrder]:
        """Return the segments in turn as they are indexed; a later epoch is one piece."""
        if self.knows_end(epoch):
            return super().pieces(opened, epoch, piecewise)
        return GrowingPieces(self.growing, self.segments_upto, piecewise)

    def knows_end(self, epoch: int) -> bool:
        """Return False for the first epoch until all is indexed, unless the epoch needs a count of its samples."""
        return not self._may_begin_early(epoch) or self.growing.is_indexed

    def _may_begin_early(self, epoch: int) -> bool:
        return epoch == 0 and self.delivered is None and not self.gaps and not self.deals

    def why_uncounted(self, epoch: int, world_size: int) -> str:
        """Return why ranks cannot agree on the samples of an epoch: some may know all shards before others."""
        if self.knows_end(epoch) if world_size == 1 else not self._may_begin_early(epoch):
            return ""
        return (
            "the first epoch has no length that all ranks know before its end, as it may begin before all shards are "
            'indexed: len(dataset) is an estimate, and shoal.open(..., index="wait") counts before it begins'
        )

    def length(self, epoch: int) -> Length:
        """Return the number of positions of an epoch: an estimate until all shards are indexed."""
        if self.knows_end(epoch):
            return super().length(epoch)
        growth = self.growing.growth()
        words = f"{growth.num_indexed_shards} of {growth.num_shards} shards are indexed: the epoch has about "
        words += f"{growth.num_samples} samples, give or take {growth.error}"
        return Length(growth.num_samples, growth.error, words)

    def segments_upto(self, position: int, is_stopped: Callable[[], bool]) -> FirstSegments:
        """Return all segments that are indexed, and wait for the segment with this position.

        Raises `StoppedError` soon after ``is_stopped`` returns True.
        """
        segments, num_segments = self.growing.segments, self.growing.num_segments
        number = num_samples = 0
        while number < num_segments and (number < segments.num_made or num_samples <= position):
            num_samples += segments.index(number, is_stopped).num_samples
            number += 1
        return FirstSegments(*self._upto(number), number == num_segments)

    def _upto(self, num_segments: int) -> tuple[Opened, ResolvedSegments]:
        self.check_loaded(num_segments)
        opened, borders = self.growing.prefix(num_segments), tuple(self.growing.borders[: num_segments + 1])
        resolved = ResolvedSegments(
            opened.index, self.request, spills=can_spill(opened), borders=borders, known=dict(self._segments)
        )
        self._segments.update(enumerate(resolved.segments))
        return opened, resolved

    def untouched(self, epoch: int) -> BoundOrder:
        """Return the order of one epoch, gaps included."""
        return self.of_epoch(epoch).untouched(epoch)

    def left(self, epoch: int) -> Runs | None:
        """Return the remaining positions of an epoch; None if all remain, so that nothing is counted."""
        is_touched = self.gaps.of_epoch(epoch) or any(deal.epoch == epoch for deal in self.deals)
        return super().left(epoch) if is_touched else None

    def position_of(self, epoch: int, number: int) -> int:
        """Return the position after the first ``number`` positions of an epoch, without counting the epoch."""
        return number if self.left(epoch) is None else super().position_of(epoch, number)

    def segments_of_state(self, epoch: int, position: int, *, is_whole: bool = False) -> str:
        """Return the identity of the segments that hold the samples up to a position of an epoch."""
        if not position and not is_whole:
            return ""
        needs_all = is_whole or epoch > 0 or self.delivered is not None
        growing = self.growing
        return growing.identity_of(growing.num_segments if needs_all else growing.num_segments_of(position))

    def check_loaded(self, num_segments: int) -> None:
        """Raise `StateError` if the loaded state has other samples; no error while too few segments are indexed."""
        if not self.loaded:
            return
        size = self.growing.num_segments
        number = min(int(self.loaded.partition("-")[0]), size)
        if number > num_segments or self.growing.identity_of(number) == self.loaded:
            return
        msg = f"the state was saved when the shards of the first {number} of {size} segments held other samples, or "
        msg += "their index other extents"
        hint = "shards were replaced by others of the same size, or another index was found: with other extents "
        hint += "(`shoal index --extent-bytes`), or for another format=; restore shards and index, or start a new run"
        raise StateError(msg, hint=hint)

    @cached_property
    def state_order(self) -> Mapping[str, Any]:
        """Description of the order for a state."""
        request = self.request
        description: dict[str, Any] = {
            "name": Growing.name,
            "version": Growing.version,
            "window": self.growing.window_bytes,
            "chunk": None if request.chunk is None else parse_bytes(request.chunk, "chunk"),
            "num_canonical_nodes": request.num_canonical_nodes,
        }
        return description if self.delivered is None else {**description, "delivered": self.delivered.digest()}

    def resumed(self, saved: State, gaps: Gaps) -> ResolvedGrowing:
        """Return this order with the numbers of a state, and with ``gaps`` beside the gaps of the state."""
        resumed = replace(self, gaps=gaps.plus(saved.gaps), deals=(), loaded=saved.segments)
        check = partial(saved.check, seed=self.seed, order=self.state_order, index=self.fingerprint)
        check(num_samples=saved.position)
        if resumed.knows_end(saved.epoch):
            num_samples = resumed.num_samples  # waits until all shards are indexed
            resumed.check_loaded(self.growing.num_segments)
            check(num_samples=num_samples)
        return resumed

    def __repr__(self) -> str:
        """Return a line about the segments."""
        growing = self.growing
        progress = "all indexed" if growing.is_indexed else f"{growing.segments.num_made} of them indexed"
        return f"growing order of {len(growing.shard_bytes):,} shards in {growing.num_segments:,} segments, {progress}"


@dataclass(frozen=True, slots=True)
class GrowingRequest:
    """A window that begins with the first shards, while later shards are indexed."""

    window: OrderRequest
    is_shuffled = True
    varies = False
    names_source = False
    has_own_length = False

    @property
    def seed(self) -> int:
        """Seed of the order."""
        return self.window.seed

    def words(self, num_samples: Callable[[], str]) -> list[str]:  # noqa: ARG002
        """Return the order in words."""
        return [f"order growing with seed={self.seed}"]

    def shuffled(self, request: OrderRequest) -> OrderRequest:
        """Raise `UsageError`: samples are shuffled once."""
        return self.window.shuffled(request)


@resolve.register
def _(request: GrowingRequest, source: Source, selection: Selection) -> ResolvedGrowing:
    resolved = growing_order(cast("Opened | Unindexed", source), request.window)
    return replace(resolved, delivered=selection.delivered, gaps=selection.gaps)


def growing_as_saved(shards: Opened | Unindexed, request: OrderRequest, saved: State) -> ResolvedGrowing:
    """Return the growing order of a request, with the numbers of a state where the request has none.

    Raises `StateError`: a number of the state is impossible.
    """
    order = saved.order
    try:
        window = parse_bytes(order.get("window"), "window") if request.window is None else request.window
        chunk = order.get("chunk") if request.chunk is None else request.chunk
    except UsageError as error:
        msg = f"the state's growing order is invalid: {error.message}"
        raise StateError(msg, hint="the state was changed after it was saved") from None
    nodes = order.get("num_canonical_nodes") if request.num_canonical_nodes is None else request.num_canonical_nodes
    return growing_order(shards, replace(request, window=window, chunk=chunk, num_canonical_nodes=nodes))


def growing_order(shards: Opened | Unindexed, request: OrderRequest) -> ResolvedGrowing:
    """Return the growing order of shards, with or without an index, in the window of a request."""
    window_bytes = parse_bytes(DEFAULT_WINDOW_BYTES if request.window is None else request.window, "window")
    request = replace(request, at_least_two=True)
    return ResolvedGrowing(GrowingShards(shards, request.seed, window_bytes), request)
