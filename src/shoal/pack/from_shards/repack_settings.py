"""Settings of a repacking, and their consequences for the source: selection, order, sizes, identity."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.figures import counted
from shoal.formats.column_paths import Column, as_columns
from shoal.formats.folder.reader import Folder
from shoal.formats.rows.tar.reader import Tar
from shoal.formats.writing.written_formats import WRITTEN_FORMATS
from shoal.index.table import Index
from shoal.indexing.opened_dataset import Opened
from shoal.indexing.scan.sample_keys import sample_keys
from shoal.order.arrays.index_ranges import Runs
from shoal.order.orders_without_window import Sequential
from shoal.order.partition import Partition
from shoal.order.sampling.weights_and_classes import Sampling
from shoal.pack.from_shards.repack_sources import descriptions_of
from shoal.pack.from_shards.span_reader import SAMPLE, FixedCounts, Numbered, SpanReader, SpanSamples
from shoal.pack.inputs.dedup_pass import DigestsJob, cuts_of, digests_of, seconds_of
from shoal.pack.inputs.duplicates import Dedup, Duplicates, check_dedup, distinct_digests, sample_digest
from shoal.pack.inputs.repeats import Repeats, requested_repeats
from shoal.pack.jobs.process_jobs import Progress, useful_workers
from shoal.pack.requests import ShardRequest
from shoal.pack.shards.shard_sizes import ShardSizing
from shoal.pipeline.stages.decode import Decode
from shoal.pipeline.stages.stage import Stage
from shoal.pipeline.stages.tokens.tokenizing import COUNT_FIELD, Tokenize
from shoal.reading.order_request import OrderRequest
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stream.choosing.index_columns import column_of, words_of_column
from shoal.stream.iterating.iterator_specs import WorkerSpec
from shoal.stream.iterating.pipeline_spec import PipelineSpec

MIX_MEMORY_BYTES = 1 << 30
"""Default window of a mixing pass."""


@dataclass(frozen=True, slots=True)
class RepackRequest(ShardRequest):
    """Arguments of `repack`; a format of None means the format of the source.

    ``selected`` has the source's samples that take part, None for all; ``stages`` process them before decoding and
    tokenizing.
    """

    mix: bool = False
    memory_bytes: int = MIX_MEMORY_BYTES
    decode: bool = False
    tokenize: Tokenize | None = None
    selected: Runs | None = None
    stages: tuple[Stage, ...] = ()

    @property
    def keeps_fields(self) -> bool:
        """True if samples are written with their stored fields."""
        return not self.stages and not self.decode and self.tokenize is None

    @property
    def all_columns(self) -> tuple[Column, ...]:
        """The requested columns, and the number of tokens if text is tokenized."""
        columns = as_columns(self.columns)
        is_known = any(column.name == COUNT_FIELD for column in columns)
        return (*columns, *(() if self.tokenize is None or is_known else as_columns([COUNT_FIELD])))


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


def refuse_partial(opened: Opened) -> None:
    """Raise `UsageError` if the source has no samples, or its splits exclude some."""
    index = opened.index
    if not index.num_samples:
        msg = f"{counted(index.num_shards, 'shard')} without a single sample"
        raise UsageError(msg, hint="`shoal info` shows the contents that are not samples")
    if opened.stored is not None:
        excluded = index.num_samples - len(opened.stored)
        msg = f"the splits of the source exclude {counted(excluded, 'sample')}, but shards are repacked whole"
        raise UsageError(msg, hint="remove these samples from the exclude list of the splits, or from the shards")


def format_like(index: Index) -> str:
    """Return the format of the source if it can be written; files of a folder go into tar, as in `shoal.pack.pack`."""
    if index.format == "folder":
        return "tar"
    if index.format not in WRITTEN_FORMATS:
        plain = [name for name in WRITTEN_FORMATS if "." not in name]
        msg = f"shoal reads shards of {index.format}, but cannot write them"
        raise UsageError(msg, hint=f"format= names one that can be written: {', '.join(plain)}")
    return index.format


def reading_spec(opened: Opened, source: ResolvedOrder, request: RepackRequest) -> WorkerSpec:
    """Return the spec for reading the source: all checksums are compared, and each sample comes with its id."""
    decode: tuple[Stage, ...] = (Decode(()),) if request.decode else ()
    tokenize = () if request.tokenize is None else (request.tokenize,)
    stages: tuple[Stage, ...] = (*request.stages, *decode, *tokenize, Numbered())
    pipeline = PipelineSpec(Partition(1, 1, batched=False), 0, stages, ())
    # Damaged data must not get a new checksum that would hide the damage.
    return WorkerSpec(opened, source, pipeline, ReadingOptions(on_error=request.on_error, verify="always"))


def order_of_source(index: Index, request: RepackRequest, selection: Selection) -> ResolvedOrder:
    """Return the order of the written samples; the memory of a mixing pass is its window."""
    chosen: dict[str, Any] = {"stored": selection.stored, "sampling": selection.sampling}
    if not request.mix:
        return ResolvedOrder(index, OrderRequest(order=Sequential()), **chosen)
    window = OrderRequest(seed=request.seed, window=request.memory_bytes, num_canonical_nodes=1)
    mixed = ResolvedOrder(index, window, **chosen)
    try:
        mixed.epoch(0)
    except UsageError as error:
        msg = f"memory={request.memory_bytes} is too little to mix these shards: {error.message}"
        enough = error.hint.partition(";")[0].replace("window=", "memory=")
        raise UsageError(msg, hint=enough) from None
    return mixed


def record_bytes_of(index: Index) -> NDArray[np.int64]:
    """Return the bytes of each sample, or its share of an extent if samples have no sizes of their own."""
    if index.sample_bytes is not None:
        return index.sample_bytes.astype(np.int64)
    means = np.maximum(1, index.extent_decoded_bytes // np.maximum(1, index.extent_num_samples))
    return np.repeat(means, index.extent_num_samples)


def settings_of(
    index: Index,
    request: RepackRequest,
    selection: Selection,
    format_name: str,
    columns: Sequence[Column],
    sizing: ShardSizing,
) -> dict[str, Any]:
    """Return every setting that affects the output, to recognise an unfinished repacking."""
    versions = hashlib.blake2b("\0".join(index.shard_versions).encode(), digest_size=8).hexdigest()
    return {
        "repack": 3,
        "source": index.fingerprint,
        "source (times)": versions,
        **request.settings(format_name, columns, sizing),
        "mix": request.mix,
        **({"seed": request.seed, "memory": request.memory_bytes} if request.mix else {}),
        **({} if request.selected is None else {"selected": request.selected.digest()}),
        **selection.settings(),
        **({"stages": descriptions_of(request.stages)} if request.stages else {}),
        "decode": request.decode,
        **({} if request.tokenize is None else {"tokenize": list(request.tokenize.identity)}),
    }


def selection_of(opened: Opened, request: RepackRequest, progress: Progress | None) -> Selection:
    """Return the selection of samples; dedup reads the samples, or the headers of tars.

    Raises `UsageError` if a named column or class does not exist, and `ShardError` if a sample is damaged.
    """
    check_dedup(request.dedup)
    stored, duplicates = request.selected, None
    if request.dedup is not None:
        stored, duplicates = _without_duplicates(opened, request.dedup, request, progress)
    return Selection(stored, _repeats_of_columns(opened.index, stored, request), duplicates)


def _without_duplicates(
    opened: Opened, by: Dedup, request: RepackRequest, progress: Progress | None
) -> tuple[Runs | None, Duplicates]:
    """Return the selected samples without duplicates of earlier samples (None: all), and the number of duplicates.

    Keys of tars and folders come from headers and names; other samples are read, in several processes. 80 bytes of
    memory a sample.
    """
    selected, whole_selection = request.selected, Selection(request.selected)
    sizes = whole_selection.sizes(record_bytes_of(opened.index))
    num_samples = len(sizes)
    if by == "key" and isinstance(opened.format, Tar | Folder):
        digests = _digests_of_keys(chain.from_iterable(sample_keys(opened)), opened.index.num_samples)
        digests = digests if selected is None else digests[selected.members(np.arange(num_samples))]
    else:
        plain = replace(request, mix=False, stages=(), decode=False, tokenize=None)
        order = order_of_source(opened.index, plain, whole_selection)
        cuts = cuts_of(sizes)
        workers = request.num_workers or useful_workers(seconds_of(num_samples, int(sizes.sum())))
        with closing(SpanReader(reading_spec(opened, order, plain), needs_keys=False)) as reader:
            jobs = (
                DigestsJob(number, SpanSamples(reader, first, stop), stop - first, by, request.skips)
                for number, (first, stop) in enumerate(pairwise(cuts))
            )
            digests = digests_of(jobs, cuts, sizes, num_workers=workers, progress=progress)
    distinct = distinct_digests(digests, np.arange(num_samples), num_samples)
    whole = Runs.span(0, num_samples) if selected is None else selected
    duplicates = distinct.counted(by, lambda number: f"{SAMPLE}{whole.members(np.array([number]))[0]}")
    kept = whole.of_members(Runs.of(distinct.kept, num_samples)) if duplicates.num_samples else selected
    return kept, duplicates


def _repeats_of_columns(index: Index, stored: Runs | None, request: ShardRequest) -> Repeats | None:
    """Return the repeats of each selected sample, by classes of a column of the index; None for once each."""

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
