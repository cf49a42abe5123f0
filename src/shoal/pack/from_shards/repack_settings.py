"""Settings of a repacking, and their consequences for the source: order, sizes, identity."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.figures import counted
from shoal.formats.column_paths import Column, as_columns
from shoal.formats.writing.written_formats import WRITTEN_FORMATS
from shoal.index.table import Index
from shoal.indexing.opened_dataset import Opened
from shoal.order.arrays.index_ranges import Runs
from shoal.order.partition import Partition
from shoal.order.sequential_and_full import Sequential
from shoal.pack.from_shards.repack_sources import descriptions_of
from shoal.pack.from_shards.selection import Selection, repeats_of_columns, without_duplicates
from shoal.pack.from_shards.span_reader import Numbered, SpanReader
from shoal.pack.inputs.duplicates import check_dedup
from shoal.pack.jobs.process_jobs import Progress
from shoal.pack.requests import ShardRequest
from shoal.pack.shards.shard_sizes import ShardSizing
from shoal.pipeline.stages.decode import Decode
from shoal.pipeline.stages.stage import Stage
from shoal.pipeline.stages.tokenizing import COUNT_FIELD, Tokenize
from shoal.reading.order_request import OrderRequest
from shoal.reading.reading_options import ReadingOptions
from shoal.reading.resolved_order import ResolvedOrder
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


def refuse_partial(opened: Opened) -> None:
    """Raise `UsageError` if the source has no samples, or its splits exclude some."""
    index = opened.index
    if not index.num_samples:
        msg = f"{counted(index.num_shards, 'shard')} without a single sample"
        raise UsageError(msg, hint="`shoal info` shows the contents that are no samples")
    if opened.stored is not None:
        excluded = index.num_samples - len(opened.stored)
        msg = f"the splits of the source exclude {counted(excluded, 'sample')}, and shards are repacked whole"
        raise UsageError(msg, hint="remove these samples from the exclude list of the splits, or from the shards")


def format_like(index: Index) -> str:
    """Return the format of the source if it can be written; files of a folder go into tar, as in `shoal.pack.pack`."""
    if index.format == "folder":
        return "tar"
    if index.format not in WRITTEN_FORMATS:
        plain = [name for name in WRITTEN_FORMATS if "." not in name]
        msg = f"shards of {index.format} are read, and not written"
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


def selection_of(opened: Opened, request: RepackRequest, progress: Progress | None) -> Selection:
    """Return the selection of samples; dedup reads the samples, or the headers of tars.

    Raises `UsageError` if there is no column or class of a name, and `ShardError` if a sample is damaged.
    """
    check_dedup(request.dedup)
    index, selected = opened.index, Selection(request.selected)
    stored, duplicates = request.selected, None
    if request.dedup is not None:
        plain = replace(request, mix=False, stages=(), decode=False, tokenize=None)
        reader = SpanReader(reading_spec(opened, order_of_source(index, plain, selected), plain), needs_keys=False)
        stored, duplicates = without_duplicates(
            opened,
            reader,
            selected.sizes(record_bytes_of(index)),
            request.selected,
            request.dedup,
            request,
            progress,
        )
    return Selection(stored, repeats_of_columns(index, stored, request), duplicates)


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
