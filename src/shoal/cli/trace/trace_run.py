"""The run that is traced: its data, its order, and the division of its epochs into batches."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from shoal.cli.options.source_options import open_with_samples
from shoal.cli.options.stream_options import asked_order, given_order_options, read_state
from shoal.errors import UsageError
from shoal.indexing.open_source import Opened
from shoal.order.partition import Partition, Share, check_rank
from shoal.order.position_subsets import NO_GAPS
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stream.dataset_requests import request_of_state


@dataclass(frozen=True, slots=True)
class TracedRun:
    """A run whose epoch is divided into batches from ``start`` on, a count of the positions that are not skipped."""

    opened: Opened
    resolved: ResolvedOrder
    partition: Partition
    epoch: int
    start: int
    ranks: range

    @property
    def counted_from(self) -> int:
        """Position where step 0 begins."""
        return self.resolved.position_of(self.epoch, self.start)

    @property
    def first_step(self) -> int:
        """First step: that of the first whole batch before the start of counting; 0 if that starts the epoch."""
        return -(self.start // self.partition.global_batch)

    @property
    def end_step(self) -> int:
        """One more than the last step."""
        return self.partition.num_batches(self.resolved.num_samples_of(self.epoch), self.start)

    def share(self, rank: int, step: int) -> Share:
        """Return a rank's share of a step."""
        return self.partition.share(self.resolved.epoch(self.epoch), rank, step, step + 1, self.start)

    def positions(self, step: int) -> tuple[int, int]:
        """Return the positions in the order from the first sample of a step to just past its last."""
        first = self.start + step * self.partition.global_batch
        stop = min(first + self.partition.global_batch, self.resolved.num_samples_of(self.epoch))
        return self.resolved.gaps.span_of(first, stop, self.epoch, self.resolved.num_samples)

    def check_step(self, step: int) -> None:
        """Raise an error that suggests what may have been meant, unless this is a step of the epoch."""
        first, end = self.first_step, self.end_step
        if first <= step < end:
            return
        msg = f"step {step} was asked for; epoch {self.epoch} has steps {first} to {end - 1}"
        if self.start:
            msg += f", counted from position {self.counted_from}"
        hint = "negative steps lie before the position of a state, with --state FILE --from-state"
        if step >= end > 0:
            hint = f"counted over all epochs that is --epoch {step // end} --step {step % end}"
        if self.start:
            hint = "without --from-state, steps count from the start of the epoch"
        raise UsageError(msg, hint=hint)


def asked_run(arguments: argparse.Namespace) -> TracedRun:
    """Return the run that the arguments describe.

    Raises
    ------
    UsageError
        The arguments contradict each other.
    StateError
        The state is of another dataset or order.
    """
    state = None if arguments.state is None else read_state(arguments.state)
    if state is not None and (options := given_order_options(arguments)):
        msg = f"--state determines the order, and {options[0]} asks for another"
        raise UsageError(msg, hint="leave out one of them")
    if state is None and arguments.from_state:
        msg = "--from-state counts from the position of a state, and no state is given"
        raise UsageError(msg, hint="--state FILE names it")
    world_size = arguments.world_size
    if arguments.rank is not None:
        check_rank(arguments.rank, world_size)
    opened = open_with_samples(arguments)
    request = asked_order(arguments) if state is None else request_of_state(state, stored=opened.stored)
    gaps = NO_GAPS if state is None else state.gaps
    resolved = ResolvedOrder(opened.index, request, stored=opened.stored, gaps=gaps)
    epoch, start = arguments.epoch or 0, 0
    if state is not None:
        fingerprint, samples = opened.index.fingerprint, resolved.num_samples
        state.check(seed=request.seed, order=resolved.state_order, index=fingerprint, num_samples=samples)
        epoch = state.epoch if arguments.epoch is None else arguments.epoch
        start = resolved.number_of(state.epoch, state.position) if arguments.from_state else 0
        if arguments.from_state and epoch != state.epoch:
            counted = f"position {state.position} of epoch {state.epoch}"
            msg = f"--from-state counts from {counted}, and --epoch asks for epoch {epoch}"
            raise UsageError(msg, hint="leave out one of them")
    size = arguments.global_batch if arguments.batch_size is None else arguments.batch_size * world_size
    ranks = range(world_size) if arguments.rank is None else range(arguments.rank, arguments.rank + 1)
    return TracedRun(opened, resolved, Partition(size, world_size, arguments.remainder), epoch, start, ranks)
