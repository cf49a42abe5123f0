"""The position of an iterator, the position of a dataset to save, and the deliveries up to it."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import length_hint
from typing import Any

from shoal.errors import StateError
from shoal.order.partition import Partition
from shoal.order.states.deals import RankPlace, Start
from shoal.order.states.forms import MAX_POSITION
from shoal.stream.states.delivery_sums import NOTHING, DeliveredPart, DeliverySums, Proof

_REPEAT = (
    "epoch %d begins again at position %d, because the last pass was left before its end: the same samples come again. "
    "For other samples call set_epoch() before each pass; to continue a pass, load_state_dict(state_dict())"
)
_log = logging.getLogger("shoal")

EMPTY_QUEUE: Iterator[Any] = iter(())
"""The queue without samples."""


@dataclass(slots=True)
class Position:
    """The position of an iterator: the number of global batches yielded since position ``start`` of an epoch.

    ``leaves_out`` is true if samples may be dropped while reading. The maker of batches has ``sums``; a receiver of
    batches sets ``received`` instead.

    If ranks fill their batches, the position counts the samples that ``rank`` has taken from its share. ``later`` has
    the places of the rank in later epochs (`RankPlace`). If the rank packs documents, ``num_sequences`` sequences of
    the following documents have been yielded; with `flat_map`, so many parts of the following sample.

    Without ``knows_end``, the samples of the epoch are not counted yet: ``num_samples`` counts up to the last whole
    global batch that can be made now, and the last step is unknown.

    ``num_made`` samples are made; samples in ``queue`` are not yielded yet. The queue is a list iterator, because its
    length hint makes a counter per sample unnecessary.
    """

    epoch: int
    start: int
    partition: Partition
    num_samples: int
    num_made: int = 0
    is_over: bool = False  # no more batches are needed
    leaves_out: bool = False
    sums: DeliverySums | None = None
    received: Proof = NOTHING
    rank: int | None = None
    later: Mapping[int, Start] = field(default_factory=dict)
    num_sequences: int = 0
    knows_end: bool = True
    queue: Iterator[Any] = field(default=EMPTY_QUEUE, init=False, repr=False, compare=False)

    @property
    def num_yielded(self) -> int:
        """Number of yielded global batches; of yielded positions if there are no batches."""
        return self.num_made - length_hint(self.queue)

    @num_yielded.setter
    def num_yielded(self, number: int) -> None:
        self.num_made, self.queue = number, EMPTY_QUEUE

    @property
    def counts_made(self) -> tuple[int, int]:
        """Counts of everything made, yielded or not: they change with every batch, sample or sequence."""
        return self.num_made, self.num_sequences

    def move(self, place: tuple[int, int, Proof]) -> None:
        """Set ``num_yielded``, ``num_sequences`` and ``received``."""
        self.num_yielded, self.num_sequences, self.received = place

    def end_at(self, num_samples: int) -> None:
        """Record the number of samples in the epoch."""
        self.num_samples, self.knows_end = num_samples, True

    def reach(self, num_samples: int, *, is_all: bool) -> int:
        """Record the number of samples of the epoch that can be read now; return the number of whole steps."""
        if self.knows_end:
            return self.num_steps
        num_steps = (num_samples - self.start) // self.partition.global_batch
        self.num_samples = num_samples if is_all else self.start + num_steps * self.partition.global_batch
        self.knows_end = is_all
        return num_steps

    @property
    def num_steps(self) -> int:
        """Batches, or positions without batches, to the end of the epoch; the rank's samples if ranks fill batches."""
        if not self.knows_end:
            return MAX_POSITION
        if self.rank is not None:
            return self.partition.num_samples_of(self.rank, self.num_samples - self.start)
        return self.partition.num_batches(self.num_samples, self.start)

    @property
    def global_batches(self) -> range:
        """The global batches from the next (or begun) batch to the end of the epoch."""
        size = 1 if self.rank is None else self.partition.size_of(self.rank)
        return range(self.num_yielded // size, self.partition.num_batches(self.num_samples, self.start))

    @property
    def num_taken(self) -> int:
        """Samples of the first of `global_batches` that the rank has taken, if ranks fill their batches."""
        return 0 if self.rank is None else self.num_yielded % self.partition.size_of(self.rank)

    def is_repeated_by(self, later: Position) -> bool:
        """Return True if this pass was left before its end, and ``later`` begins at the start of this pass.

        Reading only the first batch, or single samples, does not count as a pass.
        """
        size = 1 if self.rank is None else self.partition.size_of(self.rank)
        was_left = self.partition.batched and size < self.num_yielded < self.num_steps
        return was_left and (self.epoch, self.start) == (later.epoch, later.start)

    @property
    def proof(self) -> Proof:
        """Proof of the yielded samples."""
        return self.received if self.sums is None else self.sums.up_to(self.num_yielded)

    @property
    def end(self) -> int:
        """The position after the last yielded sample, in this epoch."""
        if not self.num_yielded:
            return self.start
        if not self.knows_end:  # all batches so far were whole
            return self.start + self.num_yielded * self.partition.global_batch
        if self.rank is not None and self.partition.world_size == 1:  # a group may end inside of a batch
            return self.start + self.num_yielded
        size = 1 if self.rank is None else self.partition.size_of(self.rank)
        return self.partition.end_of(-(-self.num_yielded // size) - 1, self.num_samples, self.start)

    @property
    def resume_point(self) -> tuple[int, int, RankPlace | None]:
        """Epoch and position of the next sample, (epoch + 1, 0) at the end; and the place of the rank or None.

        `StateError` if ranks are at different positions.
        """
        if self.rank is not None:
            ends = self.num_yielded >= self.num_steps
            start = None if ends else Start(self.start, self.num_yielded, self.num_sequences)
            return place_in(self.partition, self.rank, self.epoch + ends, start, self.later)
        if self.num_yielded >= self.num_steps:
            return self.epoch + 1, 0, None
        ranks = self.partition.world_size
        if self.num_yielded and self.leaves_out and ranks > 1 and not self.partition.batched:
            msg = (
                f"{ranks} ranks get single samples, and filter() or damage drops samples: after equally many samples,"
                " ranks are at different positions of the epoch, and no state fits all ranks"
            )
            hint = "add batch(n), at least batch(1): batches are cut before samples are dropped; or save between epochs"
            raise StateError(msg, hint=hint)
        return self.epoch, self.end, None


def place_in(
    partition: Partition, rank: int, epoch: int, start: Start | None, later: Mapping[int, Start]
) -> tuple[int, int, RankPlace]:
    """Return epoch, position and place of a rank that fills its own batches; the position ends its delivered samples.

    ``start`` is None for the start of an epoch.
    """
    start = later.get(epoch, Start()) if start is None else start
    starts = {number: place for number, place in later.items() if number > epoch} | {epoch: start}
    position = start.number + start.taken // partition.size_of(rank) * partition.global_batch
    return epoch, position, RankPlace(partition, rank, starts)


class Deliveries:
    """Samples that a dataset has delivered in this process, up to the position of its newest iterator.

    A new iterator with the start of an earlier iterator replaces the earlier deliveries, as in states.
    """

    def __init__(self) -> None:
        self._epochs: dict[int, DeliveredPart] = {}
        self._newest: Position | None = None
        self._begins: dict[int, tuple[int, int, int]] = {}

    def follow(self, position: Position) -> None:
        """Record that a new iterator begins at this position."""
        parts = self.parts()
        # A pass of some steps begins in the middle of the rank's share.
        begin = (position.start, position.num_yielded, position.num_sequences)
        if position.epoch not in parts or begin <= self._begins[position.epoch]:
            parts.pop(position.epoch, None)
            self._begins[position.epoch] = begin
        self._epochs, self._newest = parts, position  # set last, because another thread may begin an iterator

    def forget(self) -> None:
        """Forget all deliveries, because a state was loaded."""
        self._epochs, self._newest, self._begins = {}, None, {}

    def parts(self) -> dict[int, DeliveredPart]:
        """Return the delivered parts by epoch."""
        parts, position = dict(self._epochs), self._newest
        if position is not None and position.num_yielded:
            part = DeliveredPart(position.start, position.end, position.proof)
            earlier = parts.get(position.epoch)
            parts[position.epoch] = part if earlier is None else earlier.plus(part)
        return parts


class Cursor:
    """The only mutable part of a dataset: the start of new iterators, and the position of the newest iterator.

    An iterator begins at the loaded position of the epoch, else at the start of the epoch. A loaded position stays
    valid until an iterator reaches the end of the epoch: so reading only the first batch loses nothing. Positions do
    not count gaps.

    If ranks fill their batches, ``start`` counts the samples that this rank has taken from its share, and ``later`` has
    the places of this rank in later epochs. ``loaded`` is the checksum of the loaded state; "" without a loaded state,
    or for the state of a single rank.

    ``num_moves`` counts the calls of `begin`: an iterator that has yielded nothing begins again after a move.
    ``loaded_epoch`` is the epoch of a loaded state, until an iterator yields or the start moves elsewhere.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self.start = Start()
        self.later: Mapping[int, Start] = {}
        self.loaded = ""
        self.deliveries = Deliveries()
        self.num_moves = 0
        self.loaded_epoch: int | None = None
        self._newest: Position | None = None
        self._is_named = self._is_repeat = self._has_warned_of_repeat = False
        self._watchers: list[weakref.WeakMethod[Callable[[], None]]] = []

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without watchers: a copy has no watchers."""
        return {**self.__dict__, "_watchers": []}

    def watch(self, moved: Callable[[], None]) -> None:
        """Call the method ``moved`` whenever the start of the next iterator changes, while its object exists."""
        self._watchers = [watcher for watcher in self._watchers if watcher() is not None]
        self._watchers.append(weakref.WeakMethod(moved))

    def begin(self, epoch: int, start: Start, later: Mapping[int, Start] | None = None) -> None:
        """Start the next iterator at this place; forget the position of earlier iterators."""
        self._newest, self.later, self.loaded_epoch = None, later or {}, None
        self.num_moves += 1
        self._move(epoch, start)

    def begin_loaded(self, epoch: int, start: Start, later: Mapping[int, Start]) -> None:
        """Start the next iterator at the position of a loaded state."""
        self.begin(epoch, start, later)
        self.loaded_epoch = epoch

    def begin_epoch(self, epoch: int) -> None:
        """Start the next iterator at the start of an epoch; a loaded state may set the starts of later epochs."""
        later = self.later if epoch > self.epoch else {}
        self.begin(epoch, later.get(epoch, Start()), later)

    def follow(self, position: Position) -> None:
        """Report the position of this iterator from now on."""
        earlier = self._newest
        self._is_repeat = not self._is_named and earlier is not None and earlier.is_repeated_by(position)
        self._newest, self._is_named = position, False
        self.deliveries.follow(position)

    def name_epoch(self) -> None:
        """Note that the user chose the current epoch: a repeat of the epoch is no reason to warn."""
        self._is_repeat, self._is_named = False, True

    def yields_first(self, position: Position) -> None:
        """Record the first yield of an iterator; warn if the iterator repeats the samples of an unfinished pass."""
        self.loaded_epoch = None
        if self._is_repeat and not self._has_warned_of_repeat:
            self._has_warned_of_repeat = True
            _log.warning(_REPEAT, position.epoch, position.start)

    def ended(self, position: Position) -> None:
        """Move on to the next epoch if the ended iterator began at the current start."""
        if (position.epoch, position.start) == (self.epoch, self.start.number):
            self._move(self.epoch + 1, self.later.get(self.epoch + 1, Start()))

    def _move(self, epoch: int, start: Start) -> None:
        self.epoch, self.start = epoch, start
        for watcher in self._watchers:
            if (moved := watcher()) is not None:
                moved()

    @property
    def resume_point(self) -> tuple[int, int, RankPlace | None] | None:
        """Epoch and position of the newest iterator, even after its deletion; None without an iterator since a move."""
        return None if self._newest is None else self._newest.resume_point
