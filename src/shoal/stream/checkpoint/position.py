"""The position of an iterator in an epoch."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.errors import StateError
from shoal.order.partition import Partition
from shoal.stream.certificate.delivery_sums import NOTHING, DeliverySums, Proof


@dataclass(slots=True)
class Position:
    """The position of an iterator: the number of global batches of an epoch, counted from a start, that it has yielded.

    ``leaves_out`` is true if some samples may not be yielded, which shows only when they are read.
    """

    epoch: int
    start: int
    partition: Partition
    num_samples: int
    num_yielded: int = 0
    is_over: bool = False  # no more batches are wanted
    ledger: DeliverySums | None = None
    received: Proof = NOTHING
    leaves_out: bool = False

    @property
    def proof(self) -> Proof:
        """Sum of the samples yielded: from the ledger of the producer, else as noted by the receiver."""
        return self.received if self.ledger is None else self.ledger.up_to(self.num_yielded)

    @property
    def end(self) -> int:
        """The position after all samples yielded, in this epoch."""
        if not self.num_yielded:
            return self.start
        return self.partition.end_of(self.num_yielded - 1, self.num_samples, self.start)

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and position of the next sample; (epoch + 1, 0) after the last.

        Raises
        ------
        StateError
            There is no position that all ranks have in common.
        """
        if self.num_yielded >= self.partition.num_batches(self.num_samples, self.start):
            return self.epoch + 1, 0
        ranks = self.partition.world_size
        if self.num_yielded and self.leaves_out and ranks > 1 and not self.partition.batched:
            msg = (
                f"{ranks} ranks get single samples, of which some are left out (filter(), or damaged ones): after as"
                " many samples each rank is at another position of the epoch, and no state fits all of them"
            )
            hint = "add batch(n), batch(1) at least, which is cut before samples are left out; or save between epochs"
            raise StateError(msg, hint=hint)
        return self.epoch, self.end
