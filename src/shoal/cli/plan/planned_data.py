"""Describe the data and the order of a plan, from an index, a listing, or numbers."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from shoal.cli.options.argument_types import option_of
from shoal.cli.options.source_options import open_with_samples, refuse_mixture, source_of, storage_options_of
from shoal.cli.options.stream_options import given_order_options, requested_order
from shoal.cli.plan.planned_reading import DatasetReading, PlannedReading, windowed
from shoal.errors import UsageError
from shoal.figures import bytes_text, parse_bytes
from shoal.index.cutting import usual_extent_bytes
from shoal.index.index_file import num_column_bytes
from shoal.index.table import BYTES_OF_A_SAMPLE, BYTES_OF_AN_EXTENT, own_bytes
from shoal.indexing.build import MANY_SAMPLES
from shoal.indexing.opened_dataset import Opened
from shoal.order.orders_without_window import Block
from shoal.order.window.order import Window
from shoal.quality.expected_quality import GrowingQuality
from shoal.quality.growing_quality import growing_quality
from shoal.reading.cache.large_chunks import refuse_too_large, too_large
from shoal.reading.growing.resolved_growing import ResolvedGrowing
from shoal.reading.order_request import OrderRequest
from shoal.reading.resolved_order import ResolvedOrder
from shoal.storage.sources.source import printed
from shoal.stream.mixing.mixed_dataset import MixedDataset
from shoal.stream.open_dataset import open_dataset
from shoal.tools.planning.rank_memory import PlannedOrder
from shoal.tools.planning.sizing import Cluster, recommend

_GROW = "grow"  # the --index of a growing order
_MOST_CHUNKS = 1 << 22  # in a model without an index; more chunks change only the time


@dataclass(frozen=True, slots=True, eq=False)
class PlannedData:
    """The data of a plan: the size, the chunks or a model with fewer chunks, and the memory.

    ``stored_bytes`` includes the gaps between chunks. ``sample_bytes`` is the mean over the samples of a batch as
    stored, ``held_sample_bytes`` in memory. ``num_read_chunks`` counts the reads of an epoch if no two ranks read the
    same chunk. ``largest_held_bytes`` is the memory of the largest chunk, ``uneven_bytes`` its excess over the mean if
    chunks can only be held whole. ``refusal`` is the error of a stream in this order, or empty. ``num_spilled`` chunks
    are too large for the window and decoded into the chunk cache. ``resolved`` is the order of an ``opened`` index,
    ``listed`` has shards without an index, ``mixture`` is an unshuffled mixture. All processes of a node share the
    mapped index of ``index_bytes``.
    """

    num_samples: int
    num_bytes: float
    stored_bytes: float
    held_bytes: float
    num_chunks: int
    num_read_chunks: float
    sample_bytes: float
    held_sample_bytes: float
    chunk_samples: NDArray[np.int64]
    chunk_bytes: NDArray[np.int64]
    order: PlannedOrder
    reading: PlannedReading
    call: str
    uneven_bytes: float = 0.0
    largest_held_bytes: float = 0.0
    refusal: str = ""
    num_spilled: int = 0
    resolved: ResolvedOrder | None = None
    listed: ListedShards | None = None
    opened: Opened | None = None
    mixture: MixedDataset | None = None
    index_bytes: float = 0.0

    @property
    def mean_chunk_bytes(self) -> float:
        """Mean bytes of a stored chunk."""
        return float(self.chunk_bytes.mean())

    @property
    def mean_held_bytes(self) -> float:
        """Mean bytes of a chunk in memory, decompressed."""
        return self.held_bytes / self.num_chunks


def planned_data(arguments: argparse.Namespace, cluster: Cluster, known: PlannedData | None = None) -> PlannedData:
    """Return the data of the arguments, in their order or in the recommended order.

    ``known`` is the same data in another order, so the data are not opened or listed again.
    """
    if not arguments.source:
        if arguments.sample_bytes is None:
            raise UsageError("--num-samples needs --sample-bytes", hint="--sample-bytes 8KB")
        sample_bytes = parse_bytes(arguments.sample_bytes, "--sample-bytes")
        return _of_size(arguments, cluster, arguments.num_samples, sample_bytes)
    if arguments.index == _GROW:
        listed = known.listed if known is not None and known.listed is not None else _listed_shards(arguments)
        sample_bytes = max(1, round(int(listed.num_bytes.sum()) / listed.num_samples))
        return replace(_of_size(arguments, cluster, listed.num_samples, sample_bytes), listed=listed)
    opened = known.opened if known is not None and known.opened is not None else open_with_samples(arguments)
    return _of_source(arguments, cluster, opened)


def _of_source(arguments: argparse.Namespace, cluster: Cluster, opened: Opened) -> PlannedData:
    request = requested_order(arguments)
    index = opened.index
    num_bytes, index_bytes = int(own_bytes(index).sum()), float(num_column_bytes(index))
    if not given_order_options(arguments):
        extent_bytes = -(-num_bytes // index.num_extents)
        sizing = recommend(beside(cluster, index_bytes), dataset_bytes=num_bytes, least_chunk_bytes=extent_bytes)
        nodes = sizing.num_canonical_nodes
        request = OrderRequest(window=sizing.window_bytes, chunk=sizing.chunk_bytes, num_canonical_nodes=nodes)
    may_spill = index.sample_bytes is None and bool(opened.format.spilled_as)
    spills = cluster.cache_bytes is not None and may_spill
    resolved = ResolvedOrder(index, request, stored=opened.stored, spills=spills)
    chunks = resolved.chunks
    chunk_bytes = chunks.end_byte - chunks.first_byte
    held_bytes = np.maximum(chunks.decoded_bytes, chunk_bytes)
    refusal = ""
    try:
        refuse_too_large(opened, resolved, None)
    except UsageError as error:
        refusal = str(error)
    order, decoded_bytes = windowed(resolved.order), int(index.extent_decoded_bytes.sum())
    reading = DatasetReading(
        order,
        chunks.num_samples,
        chunk_bytes,
        len(chunks),
        mean_held_bytes=float(held_bytes.mean()),
        largest_held_bytes=float(held_bytes.max()),
        option_chunk_bytes=round(resolved.extents_per_chunk * decoded_bytes / index.num_extents),
        option_window_bytes=-(-order.chunks * decoded_bytes // len(chunks)),
        least_chunk_bytes=decoded_bytes / index.num_extents,
        shard_chunks=np.bincount(chunks.shard, minlength=index.num_shards),
        table=chunks,
    )
    return PlannedData(
        num_samples=index.num_samples,
        num_bytes=num_bytes,
        stored_bytes=index.num_bytes,
        held_bytes=float(held_bytes.sum(dtype=np.float64)),
        num_chunks=len(chunks),
        num_read_chunks=float(np.count_nonzero(chunks.num_samples)),
        sample_bytes=num_bytes / index.num_samples,
        held_sample_bytes=float(held_bytes.sum(dtype=np.float64)) / index.num_samples,
        chunk_samples=chunks.num_samples,
        chunk_bytes=chunk_bytes,
        order=order,
        reading=reading,
        call=str(resolved),
        uneven_bytes=float(held_bytes.max() - held_bytes.mean()) if index.sample_bytes is None else 0.0,
        largest_held_bytes=float(held_bytes.max()),
        refusal=refusal,
        num_spilled=int(too_large(resolved, None).sum()) if spills else 0,
        resolved=resolved,
        opened=opened,
        index_bytes=index_bytes,
    )


def _of_size(arguments: argparse.Namespace, cluster: Cluster, num_samples: int, sample_bytes: int) -> PlannedData:
    num_bytes = float(num_samples * sample_bytes)
    extent_bytes = max(sample_bytes, usual_extent_bytes(num_samples * sample_bytes))
    index_bytes = num_bytes / extent_bytes * BYTES_OF_AN_EXTENT
    index_bytes += num_samples * BYTES_OF_A_SAMPLE if num_samples < MANY_SAMPLES else 0
    least_bytes = max(1 << 18, extent_bytes)
    sizing = recommend(beside(cluster, index_bytes), dataset_bytes=num_bytes, least_chunk_bytes=least_bytes)
    chunk_bytes = sizing.chunk_bytes if arguments.chunk is None else parse_bytes(arguments.chunk, "--chunk")
    chunk_samples = max(1, chunk_bytes // sample_bytes)
    num_chunks = -(-num_samples // chunk_samples)
    order: Window | Block = Window(sizing.chunks, sizing.num_canonical_nodes)
    if arguments.window is not None:
        alive = min(max(2, parse_bytes(arguments.window, "--window") // chunk_bytes), max(2, num_chunks))
        order = Window(alive, arguments.num_canonical_nodes)
    elif arguments.order is not None or arguments.chunks is not None:
        order = windowed(requested_order(arguments).order)
    alive, exact_bytes = order.chunks, chunk_samples * sample_bytes
    modelled = min(num_chunks, max(_MOST_CHUNKS, 8 * alive))
    chunk = bytes_text(exact_bytes, is_enough=lambda number: number // sample_bytes == chunk_samples)
    if isinstance(order, Window):
        text_bytes = parse_bytes(chunk, "chunk")
        holds = partial(_holds, alive, text_bytes)
        window = bytes_text(alive * exact_bytes, is_enough=holds)
        if window.isdecimal():  # the text for the chunk was rounded up, and the window has no short text
            window = bytes_text(alive * text_bytes + text_bytes // 2, is_enough=holds)
        call = f'shuffle(window="{window}", chunk="{chunk}", num_canonical_nodes={order.resolved_nodes}'
    else:
        call = f'shuffle(shoal.orders.Block(chunks={alive}), chunk="{chunk}"'
    sizes = (np.full(modelled, chunk_samples), np.full(modelled, exact_bytes))
    held_bytes = num_bytes / num_chunks
    reading = DatasetReading(
        order,
        *sizes,
        num_chunks,
        mean_held_bytes=held_bytes,
        largest_held_bytes=float(exact_bytes),
        option_chunk_bytes=exact_bytes,
        option_window_bytes=alive * exact_bytes,
        least_chunk_bytes=float(max(1, round(extent_bytes / sample_bytes)) * sample_bytes),
    )
    return PlannedData(
        num_samples=num_samples,
        num_bytes=num_bytes,
        stored_bytes=num_bytes,
        held_bytes=num_bytes,
        num_chunks=num_chunks,
        num_read_chunks=num_chunks,
        sample_bytes=sample_bytes,
        held_sample_bytes=sample_bytes,
        chunk_samples=sizes[0],
        chunk_bytes=sizes[1],
        order=order,
        reading=reading,
        call=f"{call})",
        largest_held_bytes=float(exact_bytes),
        index_bytes=index_bytes,
    )


def beside(cluster: Cluster, index_bytes: float) -> Cluster:
    """Return the cluster without the memory of the index."""
    return replace(cluster, memory_bytes=max(1.0, cluster.memory_bytes - index_bytes))


def _holds(alive: int, chunk_bytes: int, window_bytes: int) -> bool:
    """Return True if a window of ``window_bytes`` holds exactly ``alive`` chunks."""
    return window_bytes // chunk_bytes == alive


@dataclass(frozen=True, slots=True, eq=False)
class ListedShards:
    """Shards without an index: ``num_bytes`` of each in permuted order, and the estimated number of samples."""

    num_bytes: NDArray[np.int64]
    num_samples: int

    def quality(
        self, order: Window | Block, chunk_bytes: float, batch: int, arguments: argparse.Namespace
    ) -> GrowingQuality:
        """Predict the mixing of the first epoch; its windows have as many bytes as the windows of later epochs."""
        is_known = arguments.rho < 1.0 or arguments.shard_rho is not None
        return growing_quality(
            self.num_bytes,
            batch,
            sample_bytes=float(self.num_bytes.sum()) / self.num_samples,
            seed=None,
            window=round(order.chunks * chunk_bytes) if arguments.window is None else arguments.window,
            chunk=round(chunk_bytes) if arguments.chunk is None else arguments.chunk,
            num_canonical_nodes=order.resolved_nodes if isinstance(order, Window) else None,
            rho=arguments.rho if is_known else None,
            shard_rho=arguments.shard_rho,
        )


def _listed_shards(arguments: argparse.Namespace) -> ListedShards:
    """List the shards; without ``--sample-bytes``, index the shards of the first segment."""
    refuse_mixture(arguments)
    names = [name for name in ("order", "chunks", "samples", "pack_sequences") if getattr(arguments, name) is not None]
    if names:
        option = option_of(names[0])
        msg = f"--index {_GROW} sets the order before samples are counted, but {option} asks for another order"
        raise UsageError(msg, hint=f"leave out {option}; --window, --chunk, --num-canonical-nodes and --seed apply")
    dataset = open_dataset(
        source_of(arguments),
        split=arguments.split,
        index=_GROW,
        format=arguments.format,
        storage_options=storage_options_of(arguments),
    )
    resolved = dataset.shuffle(seed=arguments.seed).stream.resolved
    if not isinstance(resolved, ResolvedGrowing):
        msg = f"{printed(source_of(arguments))} has a fixed order, and does not grow"
        raise UsageError(msg, hint=f"leave out --index {_GROW}")
    growing = resolved.growing
    if arguments.sample_bytes is None:
        return ListedShards(growing.shard_bytes, growing.growth().num_samples)
    total = int(growing.shard_bytes.sum())
    return ListedShards(growing.shard_bytes, max(1, total // parse_bytes(arguments.sample_bytes, "--sample-bytes")))
