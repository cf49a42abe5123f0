"""The protocol of batch makers; each maker has its own file, and no code tests for the type of a maker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from shoal.order.partition import Partition
from shoal.order.states.deals import RankPlace
from shoal.stream.iterating.batch_context import BatchContext
from shoal.stream.iterating.shares import Shares
from shoal.stream.iterating.source_reading import Reading
from shoal.stream.states.delivery_sums import Proof
from shoal.stream.states.iterator_position import Cursor, Position
from shoal.stream.verbs.dataset_requests import Batching


class Batcher(ABC):
    """A maker of batches from the samples that a rank reads; it pickles, and has no position."""

    counts_share = False
    """True if ``position`` counts samples of this rank's share: only reading determines the size of a batch."""

    counts_tokens = False
    """True if the batcher counts tokens instead of the stages."""

    unknown = ""
    """Noun for the unknown in the length of an epoch, such as "batches"; "" if the length is known before reading."""

    verb = ""
    """The call that makes ranks fill batches; "" if ranks do not fill batches."""

    ids_field = "__id__"
    """The field of a batch with the ids of its samples, added by `with_ids`."""

    makes_arrays = False
    """True if a batch is not collated from samples."""

    counts_samples = True
    """True if whole batches have the same number of samples."""

    weighs = False
    """True if ranks share samples by weights (``batch(balance=)``)."""

    note = ""
    """Description of the samples missing in a certificate of a part of an epoch."""

    @abstractmethod
    def batches(self, shares: Shares, reading: Reading, context: BatchContext) -> Iterator[Any]:
        """Return an iterator over the batches of a rank's shares; in a worker, over the steps to send."""

    def partition(self, batching: Batching | None, world_size: int) -> Partition:
        """Return the partition of an epoch among ``world_size`` ranks."""
        if batching is None:
            return Partition(world_size, world_size, batched=False)
        return batching.partition(world_size)

    def check_passes(self, batching: Batching | None, world_size: int, *, in_passes: bool) -> None:  # noqa: ARG002
        """Raise `UsageError` if ranks may end an epoch apart without permission, or cannot end passes together."""
        return

    def refuse_steps(self, verb: str) -> None:  # noqa: ARG002
        """Raise `UsageError` for a verb that counts steps if positions do not follow from steps."""
        return

    def start(self, cursor: Cursor, partition: Partition, rank: int) -> tuple[int, int, RankPlace | None]:  # noqa: ARG002
        """Return epoch and position of a new iterator, and the rank's place; None if all ranks share a position."""
        return cursor.epoch, cursor.start.number, None

    def of_worker(self) -> Batcher:
        """Return the batcher of a worker process."""
        return self

    def received(
        self,
        position: Position,
        context: Callable[[], BatchContext],  # noqa: ARG002
        finish: Callable[[Any], Any] | None,
    ) -> Received:
        """Return the receiver of the steps that workers send; ``finish`` converts its batches."""
        return WholeBatches(position, finish)

    def settings(self, loaded: str, steps: int | str | None) -> dict[str, Any]:  # noqa: ARG002
        """Return additional settings that ranks must share; ``loaded`` is the checksum of the loaded state."""
        return {}


class Received(Protocol):
    """Batches made from the steps that worker processes send."""

    @property
    def is_full(self) -> bool:
        """True if a batch is ready."""
        ...

    def add(self, made: Any, proof: Proof) -> None:
        """Append the result of a worker's next step, and the proof of its samples."""
        ...

    def batch(self) -> Any:
        """Return the next batch."""
        ...

    def last(self) -> Iterator[Any]:
        """Yield the remaining batches after the last step."""
        ...


class WholeBatches:
    """Whole batches from workers; ``finish`` converts each."""

    def __init__(self, position: Position, finish: Callable[[Any], Any] | None) -> None:
        self._position, self._finish = position, finish
        self._waiting: deque[tuple[Any, Proof]] = deque()

    @property
    def is_full(self) -> bool:
        """True if a batch is ready."""
        return bool(self._waiting)

    def add(self, made: Any, proof: Proof) -> None:
        """Append a batch."""
        self._waiting.append((made if self._finish is None else self._finish(made), proof))

    def batch(self) -> Any:
        """Return the batch, and count it."""
        batch, proof = self._waiting.popleft()
        self._position.num_yielded += 1
        self._position.received = self._position.received.plus(proof)
        return batch

    def last(self) -> Iterator[Any]:
        """Return no batches."""
        return iter(())
