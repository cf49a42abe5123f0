"""The samples of a dataset, stretch by stretch of an order, read through the stream by whoever makes shards of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shoal.errors import ShardError
from shoal.formats.shard_format import Sample
from shoal.index.table import locate
from shoal.order.arrays.index_ranges import Runs
from shoal.pack.unit import Named, Unreadable
from shoal.stats.counters import Counters
from shoal.stream.iterating.iterator import Iteration
from shoal.stream.iterating.iterator_spec import WorkerSpec
from shoal.stream.workers.pickling import pack, unpack

__all__ = ["SAMPLE", "Numbered", "StretchReader", "StretchSamples"]

SAMPLE = "sample "
"""How samples that were left out are named: this, and their number in the source."""


class StretchReader:
    """Stretches of an order, read one after the other; one that goes on where the last ended costs nothing more.

    The stages of ``work`` end with `Numbered`. With ``needs_keys`` samples without a key get their number as one;
    ``renamed`` gives fields other names.

    Pickled, it is one for another process, which reads each stretch for itself.
    """

    def __init__(
        self, work: WorkerSpec, *, needs_keys: bool, renamed: Mapping[str, str] | None = None, goes_on: bool = True
    ) -> None:
        self._work, self._needs_keys, self._goes_on = work, needs_keys, goes_on
        self._renamed = dict(renamed or {})
        self._iteration: Iteration | None = None
        self._pending: tuple[int, Sample] | None = None  # read, and for a stretch to come
        self._at = -1
        self._packed: bytes | None = None

    def __reduce__(self) -> tuple[object, ...]:
        if self._packed is None:
            self._packed = pack(self._work)
        return _arrived, (self._packed, self._needs_keys, self._renamed)

    def samples(self, first: int, stop: int) -> Iterator[Sample | Named | Unreadable]:
        """The samples at the positions ``[first, stop)``."""
        if self._iteration is None or self._at != first or not self._goes_on:
            self.close()
            self._iteration = self._begun(first, stop)
        self._at = first
        for sample_id in self._work.arrangement.epoch(0).ids(first, stop).tolist():
            found = self._pending or next(self._iteration, None)
            is_here = found is not None and found[0] == sample_id
            self._pending = None if is_here else found
            self._at += 1
            if found is not None and is_here:
                yield self._finished(sample_id, found[1])
            else:
                yield self._damaged(sample_id)

    def one_by_one(self, num_samples: int) -> Iterator[Sample | Named | Unreadable]:
        """All samples from the first on, for whoever wants but a few of them."""
        for position in range(num_samples):
            yield from self.samples(position, position + 1)

    def close(self) -> None:
        """Stop reading."""
        iteration, self._iteration, self._pending = self._iteration, None, None
        if iteration is not None:
            iteration.close()

    def _begun(self, first: int, stop: int) -> Iteration:
        work = self._work
        if not self._goes_on:
            # Nothing beyond the stretch is read ahead.
            delivered = replace(work.arrangement, delivered=Runs.span(first, stop), _epochs={})
            work, first = replace(work, arrangement=delivered), 0
        return work.iterate(Counters(), epoch=0, start=first, ended=_nothing, state=_no_state)

    def _finished(self, sample_id: int, sample: Sample) -> Sample | Named:
        if self._renamed:
            sample = {self._renamed.get(name, name): value for name, value in sample.items()}
        if self._needs_keys and "__key__" not in sample:
            sample = {"__key__": f"{sample_id:09d}", **sample}  # nine digits sort as numbers do
        # By its number it is known which values of the source's columns are left out with it.
        return Named(f"{SAMPLE}{sample_id}", sample) if self._work.options.skips else sample

    def _damaged(self, sample_id: int) -> Unreadable:
        index = self._work.opened.index
        shard = index.shard_names[int(locate(index, [sample_id])[0][0])]
        error = ShardError("this sample is damaged", shard=shard, hint="`shoal verify` says how")
        return Unreadable(f"{SAMPLE}{sample_id}", error, error.message)


def _arrived(packed: bytes, needs_keys: bool, renamed: dict[str, str]) -> StretchReader:  # noqa: FBT001  # by pickle
    return StretchReader(unpack(packed), needs_keys=needs_keys, renamed=renamed, goes_on=False)


class Numbered:
    """A stage that gives a sample together with its id."""

    has_functions = False

    def __call__(self, sample: Any, sample_id: int, /) -> Any:
        """Both."""
        return sample_id, sample


@dataclass(frozen=True, slots=True)
class StretchSamples:
    """The samples of one new shard."""

    reader: StretchReader
    first: int
    stop: int

    def __iter__(self) -> Iterator[Sample | Named | Unreadable]:
        return self.reader.samples(self.first, self.stop)


def _nothing(_: object) -> None:
    """Nobody keeps a state of this."""


def _no_state(epoch: int, position: int) -> dict[str, Any]:
    msg = f"a state was asked for at epoch {epoch}, position {position}"
    raise AssertionError(msg)
