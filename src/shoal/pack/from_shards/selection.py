"""Selection of a source's samples for repacking: without duplicates, and with rare classes repeated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.formats.folder.reader import Folder
from shoal.formats.tar.reader import Tar
from shoal.index.table import Index
from shoal.indexing.opened_dataset import Opened
from shoal.indexing.sample_keys import sample_keys
from shoal.order.arrays.index_ranges import Runs
from shoal.order.sampling.shares import Sampling
from shoal.pack.from_shards.span_reader import SAMPLE, FixedCounts, SpanReader, SpanSamples
from shoal.pack.inputs.dedup_pass import DigestsJob, cuts_of, digests_of, seconds_of
from shoal.pack.inputs.duplicates import Dedup, Duplicates, distinct_digests, sample_digest
from shoal.pack.inputs.repeats import Repeats, requested_repeats
from shoal.pack.jobs.process_jobs import Progress, useful_workers
from shoal.pack.requests import ShardRequest
from shoal.stream.index_columns import column_of, words_of_column


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The ``stored`` samples that take part, None for all; and their ``repeats``, None for once each."""

    stored: Runs | None = None
    repeats: Repeats | None = None
    duplicates: Duplicates | None = None

    @property
    def sampling(self) -> Sampling | None:
        """Rule for the repeats of the selected samples; None for once each."""
        return None if self.repeats is None else FixedCounts(self.repeats.times)

    def counted(self, ids: NDArray[np.int64]) -> list[int]:
        """Count some samples by class; empty if classes are not repeated."""
        if self.repeats is None:
            return []
        return self.repeats.counted(ids if self.stored is None else self.stored.numbers(ids))

    def sizes(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of each selected sample, from the bytes of each sample of the source."""
        return sizes if self.stored is None else sizes[self.stored.members(np.arange(len(self.stored)))]

    def num_bytes(self, sizes: NDArray[np.int64]) -> int:
        """Return the bytes of all copies, from the bytes of each sample of the source."""
        chosen = self.sizes(sizes)
        return int(chosen.sum() if self.repeats is None else (chosen * self.repeats.times).sum())

    def settings(self) -> dict[str, Any]:
        """Return the settings that identify the selection; empty if it is the whole source."""
        stored = {} if self.duplicates is None else {"dedup": self.duplicates.by}
        repeats = {} if self.repeats is None else {"repeats": FixedCounts(self.repeats.times).digest()}
        return stored | repeats


def without_duplicates(
    opened: Opened,
    reader: SpanReader,
    sizes: NDArray[np.int64],
    selected: Runs | None,
    by: Dedup,
    request: ShardRequest,
    progress: Progress | None,
) -> tuple[Runs | None, Duplicates]:
    """Return the samples that equal no earlier sample in stored order, None for all, and the count of the others.

    ``reader`` has the ``selected`` samples, None for all, in stored order, and ``sizes`` their bytes. Keys of tars and
    folders come from headers and names; other samples are read, in several processes. 80 bytes of memory a sample.
    """
    num_samples = len(sizes)
    if by == "key" and isinstance(opened.format, Tar | Folder):
        digests = _digests_of_keys(chain.from_iterable(sample_keys(opened)), opened.index.num_samples)
        digests = digests if selected is None else digests[selected.members(np.arange(num_samples))]
    else:
        cuts = cuts_of(sizes)
        jobs = (
            DigestsJob(number, SpanSamples(reader, first, stop), stop - first, by, request.skips)
            for number, (first, stop) in enumerate(pairwise(cuts))
        )
        workers = request.num_workers or useful_workers(seconds_of(num_samples, int(sizes.sum())))
        with closing(reader):
            digests = digests_of(jobs, cuts, sizes, num_workers=workers, progress=progress)
    distinct = distinct_digests(digests, np.arange(num_samples), num_samples)
    whole = Runs.span(0, num_samples) if selected is None else selected
    duplicates = distinct.counted(by, lambda number: f"{SAMPLE}{whole.members(np.array([number]))[0]}")
    kept = whole.of_members(Runs.of(distinct.kept, num_samples)) if duplicates.num_samples else selected
    return kept, duplicates


def repeats_of_columns(index: Index, stored: Runs | None, request: ShardRequest) -> Repeats | None:
    """Return the repeats of each selected sample, by classes of a column of the index; None for once each.

    Raises `UsageError` if there is no such column, or no such class.
    """

    def labels(name: str) -> Sequence[str | None]:
        column, words = column_of(index, name), words_of_column(index, name)
        if stored is not None:
            column = column[stored.members(np.arange(len(stored)))]
        values, codes = np.unique(column, return_inverse=True)
        texts = [_text(value, words) for value in values.tolist()]
        return [texts[code] for code in codes.tolist()]

    return requested_repeats(labels, request)


def copy_numbers(ids: NDArray[np.int64]) -> NDArray[np.int32]:
    """Count, for each position, the earlier positions with the same sample.

    >>> copy_numbers(np.array([5, 3, 5, 5, 3])).tolist()
    [0, 0, 1, 2, 1]
    """
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    begins = np.flatnonzero(np.diff(ordered, prepend=-1))
    sizes = np.diff(begins, append=len(ordered))
    numbers = np.empty(len(ids), dtype=np.int32)
    numbers[order] = np.arange(len(ids)) - np.repeat(begins, sizes)
    return numbers


def _digests_of_keys(keys: Iterator[str], num_samples: int) -> NDArray[np.uint64]:
    digests = bytearray(16 * num_samples)
    for number, key in enumerate(keys):
        digests[16 * number : 16 * number + 16] = sample_digest({"__key__": key}, "key")
    return np.frombuffer(digests, dtype=np.uint64).reshape(-1, 2)


def _text(value: float, words: Sequence[str] | None) -> str | None:
    """Return a value of a column as the name of a class; None for a code without a text."""
    if words is None:
        return str(value)
    return words[int(value)] if 0 <= value < len(words) else None
