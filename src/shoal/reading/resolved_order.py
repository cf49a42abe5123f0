"""Resolution of a dataset's order to integers: its chunks, their order, the reads, and the state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, singledispatch
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shoal.errors import StateError, UsageError
from shoal.figures import parse_bytes
from shoal.index.chunk_table import ChunkTable
from shoal.index.cutting import cut_chunks
from shoal.index.table import Index, largest_shared_bytes
from shoal.indexing.opened_dataset import Opened
from shoal.order.arrays.index_ranges import Runs
from shoal.order.position_subsets import NO_GAPS, ChosenPositions, Gaps, OverStored
from shoal.order.protocol import Adopting, BindsBetween, BoundOrder, Order, OwnLength
from shoal.order.sampling.copies import Copies, OverCopies, Turns
from shoal.order.sampling.weights_and_classes import Sampling
from shoal.order.state_dict import State
from shoal.order.states.deals import Deal
from shoal.order.window.order import Window
from shoal.order.window.sizing_by_bytes import DEFAULT_WINDOW_BYTES, resolve_window
from shoal.reading.order_request import OrderRequest, Request, Selection
from shoal.reading.resolved_epochs import ResolvedEpochs, Source
from shoal.reading.schedule.units import ChunkUnits, RecordUnits, TurnUnits, Units

# Below this fraction of the bytes of their chunks, reading single samples costs less than reading the chunks.
_SPARSE = 1 / 16
_MOST_LOOKED_AT = 1 << 20  # samples, enough to estimate that fraction


@dataclass(frozen=True)
class ResolvedOrder(ResolvedEpochs["ResolvedOrder"]):
    """A dataset with its order resolved.

    ``stored`` are the stored samples that take part, ``delivered`` the delivered positions of each epoch; None means
    all. ``sampling`` has the number of copies of each stored sample; None means one. ``gaps`` are positions that are
    left out of some epochs. ``deals`` are positions that the ranks of an earlier part of the run have taken. With
    ``spills``, chunks too large for the window are kept decoded on disk, so a window may be too small for two chunks.
    """

    index: Index
    request: OrderRequest
    stored: Runs | None = None
    delivered: Runs | None = None
    gaps: Gaps = NO_GAPS
    deals: tuple[Deal, ...] = ()
    spills: bool = False
    sampling: Sampling | None = None
    weights: NDArray[np.integer[Any]] | None = None
    _epochs: dict[int, BoundOrder] = field(default_factory=dict, init=False, repr=False, compare=False)
    _lefts: dict[int, Runs | None] = field(default_factory=dict, init=False, repr=False, compare=False)
    _turns: dict[int, Turns] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def _resolved(self) -> tuple[Order, int]:
        """The order, and the number of extents per chunk."""
        request, index = self.request, self.index
        if request.order is not None and request.extents_per_chunk is not None:
            return request.order, request.extents_per_chunk
        shard_extents = np.diff(index.shard_first_extent)
        is_shared = index.sample_bytes is None
        total_bytes = int(index.extent_decoded_bytes.sum())  # bytes in memory, not bytes to read
        if request.order is None:
            largest_bytes = largest_shared_bytes(index) if is_shared else 0
            try:
                resolved = resolve_window(
                    shard_extents,
                    total_bytes,
                    window=request.window,
                    chunk=request.chunk,
                    num_canonical_nodes=request.num_canonical_nodes,
                    at_least_two=self.spills or request.at_least_two,
                    fits_nodes=request.at_least_two,
                    largest_extent_bytes=largest_bytes,
                )
            except UsageError as error:
                if is_shared and error.hint:
                    error.hint += "; or cache= in shoal.open(), where chunks that are too large are kept decoded"
                raise
            return resolved.order, resolved.extents_per_chunk
        chunk_bytes = DEFAULT_WINDOW_BYTES // 512 if request.chunk is None else parse_bytes(request.chunk, "chunk")
        extent_bytes = total_bytes / max(1, index.num_extents)
        return request.order, max(1, round(chunk_bytes / extent_bytes)) if extent_bytes else 1

    @property
    def order(self) -> Order:
        """The order, with its sizes as integers."""
        return self._resolved[0]

    @property
    def extents_per_chunk(self) -> int:
        """Largest number of extents in a chunk."""
        return self._resolved[1]

    @property
    def window_bytes(self) -> int | None:
        """Requested bytes of the window; None for a window in chunks, or an order without a window."""
        request = self.request
        in_bytes = request.order is None or request.extents_per_chunk is not None  # requested, or fixed by a state
        if request.window is None and not (in_bytes and isinstance(self.order, Window)):
            return None
        return parse_bytes(DEFAULT_WINDOW_BYTES if request.window is None else request.window, "window")

    @cached_property
    def chunks(self) -> ChunkTable:
        """The chunks of the dataset."""
        return cut_chunks(self.index, extents_per_chunk=self.extents_per_chunk)

    @property
    def chunks_held_bytes(self) -> int:
        """Approximate decoded bytes of the chunks that the order uses at a time."""
        table = self.chunks
        num_chunks = min(self.order.parameters.get("chunks", 1), len(table))
        return int(num_chunks * table.mean_bytes)

    @property
    def by_shards(self) -> bool:
        """True if the chunks of the order are whole shards, as for a shuffle buffer."""
        return self.order.moves == "shards" and self.request.chunk is None

    @property
    def moves_chunks(self) -> bool:
        """True if the order moves `chunks` as they are."""
        return self.order.moves in ("chunks", "shards") and not self.by_shards

    @cached_property
    def order_borders(self) -> NDArray[np.int64]:
        """The first sample id of each chunk of the order, and the number of samples; shape (num_chunks + 1,)."""
        if self.by_shards:
            return self.index.extent_first_sample[self.index.shard_first_extent]
        return self.chunks.first_sample

    @property
    def num_order_chunks(self) -> int:
        """Upper bound on the numbers of the order's chunks; with a sampling, of their turns in any epoch."""
        turns = 0 if self.sampling is None else self.sampling.num_samples  # beyond the first of each chunk
        return len(self.order_borders) - 1 + turns

    @property
    def num_samples(self) -> int:
        """Samples of an epoch, over all ranks, including gaps."""
        return len(self.delivered) if self.delivered is not None else self.num_ordered

    @property
    def num_ordered(self) -> int:
        """Samples of an epoch of the order; `take` and the like may deliver only some."""
        if self.sampling is not None:
            return self.sampling.num_samples
        if isinstance(self.order, OwnLength):
            return self.order.num_positions(self.chunk_samples)
        return self.index.num_samples if self.stored is None else len(self.stored)

    @property
    def has_one_id(self) -> bool:
        """True if every epoch has the same single sample."""
        has_own_length = isinstance(self.order, OwnLength)
        return self.num_ordered == 1 and self.num_samples == 1 and self.sampling is None and not has_own_length

    @property
    def parts(self) -> tuple[ResolvedOrder, ...]:
        """The dataset itself: the only one (see `ResolvedMixture`)."""
        return (self,)

    def resumed(self, saved: State, gaps: Gaps) -> ResolvedOrder:
        """Return this order with the numbers of a state, and with ``gaps`` beside the gaps of the state."""
        resumed = replace(self, request=self.request.adopting(saved), gaps=gaps.plus(saved.gaps), deals=())
        order, num_samples = resumed.state_order, resumed.num_samples
        saved.check(seed=resumed.seed, order=order, index=resumed.fingerprint, num_samples=num_samples)
        return resumed

    def adopted(self, checkpoint: Mapping[str, Any]) -> tuple[ResolvedOrder, int, int] | None:
        """Return the order, epoch and position where a run of another library continues; see `ResolvedEpochs`."""
        if not isinstance(self.order, Adopting):
            return None
        try:
            adopted = self.order.adopted(checkpoint, self.chunk_samples, self.seed)
        except StateError:
            raise
        except (UsageError, TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
            msg = f"the checkpoint does not say where a run in the order {self.order.name!r} is: {error!r:.200}"
            raise StateError(msg, hint="give it as the library saved it") from None
        if adopted is None:
            return None
        return replace(self, request=replace(self.request, order=adopted.order, seed=adopted.seed)), *adopted[2:]

    def untouched(self, epoch: int) -> BoundOrder:
        """Return the order of one epoch over the samples that take part, as stored ids; two are cached."""
        bound = self._epochs.get(epoch)
        if bound is None:
            turns, seed = self.turns(epoch), self.request.seed
            if self.stored is None and turns is None and isinstance(self.order, BindsBetween):
                bound = self.order.bind_between(self.order_borders, seed=seed, epoch=epoch)
            else:
                counts = self.chunk_samples if turns is None else np.diff(turns.starts)
                bound = self.order.bind(counts, seed=seed, epoch=epoch)
            bound = bound if turns is None else OverCopies(bound, turns)
            bound = bound if self.stored is None else OverStored(bound, self.stored)
            bound = bound if self.delivered is None else ChosenPositions(bound, self.delivered)
            keep_newest(self._epochs, epoch, bound)
        return bound

    def turns(self, epoch: int) -> Turns | None:
        """Return the copies of the samples of an epoch, in the turns of their chunks; None without a sampling."""
        if self.sampling is None:
            return None
        turns = self._turns.get(epoch)
        if turns is None:
            copies = Copies(self.sampling.counts(seed=self.request.seed, epoch=epoch))
            turns = Turns.of(copies, self.chunk_samples, whole=not self.moves_chunks)
            keep_newest(self._turns, epoch, turns)
        return turns

    @cached_property
    def chunk_samples(self) -> NDArray[np.int64]:
        """The number of samples that take part in each chunk of the order; shape (num_chunks,)."""
        return self.stored_between(self.order_borders)

    def stored_between(self, borders: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the stored samples that take part between neighbouring borders."""
        return np.diff(borders) if self.stored is None else self.stored.count_between(borders)

    @cached_property
    def units(self) -> Units:
        """Units in which the dataset is read."""
        if self.order.moves == "samples" or self._is_sparse:
            return RecordUnits(self.index)
        return ChunkUnits(self.chunks) if self.sampling is None else TurnUnits(self.chunks)

    @property
    def _is_sparse(self) -> bool:
        """True if the samples, read one by one, are far fewer bytes than their chunks.

        A contiguous range is not sparse, however short: its chunks are read once. A few rows of large row groups are
        not sparse: every row would read its row group again.
        """
        num_samples = self.num_samples
        if num_samples >= _SPARSE * self.index.num_samples:
            return False
        ids = self.epoch(0).ids(0, min(num_samples, _MOST_LOOKED_AT, self.num_samples_of(0)))
        chunks = self.chunks
        counts = np.bincount(np.searchsorted(chunks.first_sample, ids, side="right") - 1)
        some = np.flatnonzero(counts)
        _, first_byte, end_byte = chunks.chunks.places(some)
        chunk_bytes, parts = end_byte - first_byte, chunks.samples_of(some)[1]
        if self.index.sample_bytes is None:  # a sample is read with its extent
            extents = self.index.extent_first_sample
            parts = np.searchsorted(extents, chunks.first_sample[some + 1])
            parts -= np.searchsorted(extents, chunks.first_sample[some])
        alone_bytes = float((counts[some] * (chunk_bytes / np.maximum(parts, 1))).sum())
        return alone_bytes < _SPARSE * float(chunk_bytes.sum())

    @property
    def by_singles(self) -> bool:
        """True if every read serves only one sample, so that nothing is kept for another."""
        if self.has_one_id:  # as a source of a mixture, the sample comes once in every round
            return False
        return isinstance(self.units, RecordUnits) or self.chunks.most_samples <= 1

    def moves(self, units: Units) -> bool:
        """Return True if these units are the chunks that the order moves."""
        return isinstance(units, ChunkUnits) and not units.turn_bits and not self.by_shards

    @cached_property
    def state_order(self) -> Mapping[str, Any]:
        """Description of the order for a state: two streams with equal values and seeds have equal orders."""
        order = self.order
        description: dict[str, Any] = {"name": order.name, "version": order.version, **order.parameters}
        if order.moves in ("chunks", "shards"):
            description["extents_per_chunk"] = None if self.by_shards else self.extents_per_chunk
        for key, selection in (("stored", self.stored), ("sampled", self.sampling), ("delivered", self.delivered)):
            if selection is not None:
                description[key] = selection.digest()
        return description

    def __repr__(self) -> str:
        """Return the order as a call to paste at a prompt; it gives the same integers even if defaults change."""
        order: Any = self.order
        # The fields of an order's class are its arguments, even if a state has them in the order's name.
        values = {each.name: getattr(order, each.name) for each in fields(order)} if is_dataclass(order) else {}
        arguments = ", ".join(f"{name}={value!r}" for name, value in {**values, **order.parameters}.items())
        call = f"shuffle(shoal.orders.{type(order).__name__}({arguments}), seed={self.request.seed}"
        if not self.moves_chunks:
            return call + ")"
        extent_bytes = int(self.index.extent_decoded_bytes.sum()) / self.index.num_extents  # chunk= is in decoded bytes
        return f"{call}, chunk={round(self.extents_per_chunk * extent_bytes)})"


Resolved = ResolvedEpochs[ResolvedOrder]
"""The epochs of a dataset of any kind."""


def keep_newest(cache: dict[int, Any], epoch: int, value: Any) -> None:
    """Cache a value of an epoch, and keep the value of the last epoch before."""
    for earlier in sorted(list(cache))[:-1]:  # noqa: C414  # list() is atomic; other threads add epochs
        cache.pop(earlier, None)
    cache[epoch] = value


def can_spill(opened: Opened) -> bool:
    """Return True if a dataset can keep decoded chunks: it has a cache, and its format can spill."""
    return opened.cache is not None and opened.index.sample_bytes is None and bool(opened.format.spilled_as)


@singledispatch
def resolve(request: Request, source: Source, selection: Selection) -> Resolved:
    """Return the epochs of a selection of samples in the requested order; other requests register functions here."""
    opened = source.whole.one("this order")
    return ResolvedOrder(
        opened.index,
        cast("OrderRequest", request),
        selection.stored,
        selection.delivered,
        selection.gaps,
        spills=can_spill(opened),
        sampling=selection.sampling,
    )
