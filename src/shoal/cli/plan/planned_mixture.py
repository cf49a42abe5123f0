"""The mixture that `shoal plan` plans for: the sources of a mixture file, with their weights."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shoal.cli.options.source_options import source_of
from shoal.cli.options.stream_options import given_order_options, in_order_of, open_mixture
from shoal.cli.plan.planned_data import PlannedData, beside, windowed
from shoal.cli.plan.planned_reading import likely_looks, span_of
from shoal.errors import UsageError
from shoal.figures import bytes_text, parse_bytes
from shoal.index.index_file import num_column_bytes
from shoal.index.table import own_bytes
from shoal.order.partition import Partition
from shoal.order.protocol import Changing, innermost
from shoal.order.window.order import Window
from shoal.order.window.sizing_by_bytes import DEFAULT_WINDOW_BYTES
from shoal.quality.prediction import ChunkLayout, predicted_variance_ratio
from shoal.reading.cache.large_chunks import refuse_too_large
from shoal.reading.mixture.mix_request import FOREVER, MixRequest
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.order_request import OrderRequest
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.schedule.memory_division import budget_of
from shoal.reading.schedule.read_requests import request_sizes
from shoal.reading.schedule.units import ChunkUnits, RecordUnits
from shoal.storage.sources.source import printed
from shoal.stream.mixing.mixed_dataset import MixedDataset
from shoal.stream.quality.mixture_quality import parts_of_batch
from shoal.tools.planning.mixed_reads import MixedChunks, simulate_mixture
from shoal.tools.planning.rank_memory import MixedWindows
from shoal.tools.planning.request_model import likely_requests_for_each_read, requests_for_each_read
from shoal.tools.planning.simulated_reads import ClusterReads
from shoal.tools.planning.sizing import Cluster, recommend

_LEAST_CHUNK_BYTES = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class MixtureReading:
    """The reading of a mixture, whose sources have ``chunks``; ``asked`` is the order of the sources that have none.

    ``asked`` is None if the file says how the mixture is shuffled.
    """

    resolved: ResolvedMixture
    windows: MixedWindows
    chunks: MixedChunks
    asked: OrderRequest | None

    plans_cache: bool = False

    @property
    def largest_batch(self) -> int:
        """Samples of the epoch."""
        return self.chunks.num_samples

    @property
    def num_canonical_nodes(self) -> int:
        """Canonical nodes by which batches are dealt to ranks."""
        return self.resolved.untouched(0).num_canonical_nodes

    @property
    def window_bytes(self) -> float:
        """Bytes of the windows of all sources, as they are read."""
        parts = zip(self.windows.orders, self.resolved.parts, strict=True)
        return sum(min(order.chunks, len(part.chunks)) * _mean_bytes(part) for order, part in parts)

    @property
    def notes(self) -> list[str]:
        """Sentences about the plan of a mixture, and about figures that are left out."""
        said = ["VR is that of the first weights, within sources."]
        if self.resolved.num_positions(0) >= FOREVER:
            epoch = f"{self.chunks.num_samples:,} samples, after which every source has come once"
            said.append(f"The mixture has no epochs: the plan is for {epoch}.")
        if self.asked is None:
            said.append("The file says how the mixture is shuffled, so no other window or chunk is planned.")
        return [" ".join([*said, "Chunk caches are not planned for mixtures."])]

    def reads(self, cluster: Cluster, *, epoch: int = 0) -> ClusterReads:
        """Simulate the reads of an epoch."""
        partition = Partition(cluster.global_batch, cluster.world_size)
        order = self.resolved.epoch(epoch)
        return simulate_mixture(order, self.chunks, partition, ranks_per_node=cluster.ranks_per_node)

    def variance_ratio(self, batch: int, *, rho: float) -> float:
        """Return the predicted VR of batches of this size: the mean of the sources', as in ``quality()``."""
        return sum(
            weight * (predicted_variance_ratio(part.order, _layout(part), own, rho=rho) if part.num_ordered > 1 else 1)
            for _, weight, part, own in parts_of_batch(self.resolved, batch)
        )

    def requests_for_each_read(self, reads: ClusterReads, cluster: Cluster) -> float:
        """Return the requests per chunk that is read: chunks of one source that are neighbours share one."""
        if not cluster.is_remote:
            return 1.0
        first, uses, num_requests, num_reads = self.chunks.first_chunk, reads.uses, 0.0, 0.0
        span = span_of(self.windows, cluster)
        for number, part in enumerate(self.resolved.parts):
            sizes = request_sizes(self._limit_bytes(part))
            if uses is None:
                of_source = float(self.chunks.visits[number])
                each = likely_requests_for_each_read(_chunk_bytes(part), len(part.chunks), sizes)
            else:
                mine = (uses.chunks >= first[number]) & (uses.chunks < first[number + 1])
                own = replace(
                    uses,
                    ranks=uses.ranks[mine],
                    chunks=uses.chunks[mine] - first[number],
                    first=uses.first[mine],
                    last=uses.last[mine],
                )
                of_source = float(np.count_nonzero(mine))
                each = requests_for_each_read(own, ChunkUnits(part.chunks), sizes, span_positions=span)
            num_requests, num_reads = num_requests + each * of_source, num_reads + of_source
        return num_requests / max(1.0, num_reads)

    def ahead_bytes(self, *, is_remote: bool) -> int:
        """Return the bytes that a rank reads ahead at most, of all sources together.

        None of local files: the system reads ahead there, and a mixture does not count it among what it holds.
        """
        if not is_remote:
            return 0
        return sum(request_sizes(self._limit_bytes(part)).ahead_bytes for part in self.resolved.parts)

    def num_looks(self, num_reads: float, world_size: int) -> float:
        """Count the requests by which ranks check that shards match the index."""
        each = num_reads / world_size * self.chunks.visits / self.chunks.visits.sum()
        looks = 0.0
        for drawn, part in zip(each.tolist(), self.resolved.parts, strict=True):
            shard_chunks = np.bincount(part.chunks.shard, minlength=part.index.num_shards)
            looks += likely_looks(shard_chunks, min(drawn, float(len(part.chunks)))) * world_size
        return looks

    def options(self, *, window: float = 1.0, chunk: float = 1.0) -> dict[str, Any] | None:
        """Return the options that ask for the order, with the window and the chunks larger by these factors.

        None if the file has the order, or each source has chunks of its own size.
        """
        asked, changes = self.asked, (window, chunk) != (1.0, 1.0)
        if asked is None or (asked.chunk is None and chunk != 1.0):
            return None
        options: dict[str, Any] = {"order": None, "window": None, "chunks": None, "chunk": None}
        options["num_canonical_nodes"] = asked.num_canonical_nodes
        if asked.chunk is not None:
            options["chunk"] = str(max(1, round(parse_bytes(asked.chunk, "chunk") * chunk)))
        if asked.order is None:
            given = DEFAULT_WINDOW_BYTES if asked.window is None else asked.window
            return options | {"window": str(max(1, round(parse_bytes(given, "window") * window)))}
        order = windowed(asked.order)
        if isinstance(order, Window):
            options["num_canonical_nodes"] = order.num_canonical_nodes
        num_chunks = max(1, round(order.chunks * window / chunk)) if changes else order.chunks
        return options | {"order": order.name, "chunks": num_chunks}

    def _limit_bytes(self, part: ResolvedOrder) -> int:
        return budget_of(part, None, is_remote=True, num_sources=len(self.resolved.parts)).ahead_bytes


def planned_mixture(arguments: argparse.Namespace, cluster: Cluster, known: PlannedData | None = None) -> PlannedData:
    """Return the mixture that the arguments name, in the order of its file, of the options, or as recommended.

    ``known`` is the same mixture in another order: its sources are not opened again.
    """
    _refuse_unplanned(arguments, cluster)
    dataset = known.mixture if known is not None else None
    dataset = open_mixture(arguments) if dataset is None else dataset
    shuffled, asked = _shuffled(dataset, arguments, cluster)
    resolved = shuffled.resolved
    names = [name for name, _ in resolved.request.leaves()]
    orders = [_order_of(name, part) for name, part in zip(names, resolved.parts, strict=True)]
    sizes = [part.num_ordered for part in resolved.parts]
    num_chunks = [len(part.chunks) for part in resolved.parts]
    windows = MixedWindows(orders, sizes, num_chunks, resolved.untouched(0).parameters)
    held = np.concatenate([np.maximum(part.chunks.decoded_bytes, _chunk_bytes(part)) for part in resolved.parts])
    chunks = _chunks(resolved, windows, held / float(held.mean()))
    indexes = [part.index for part in resolved.parts]
    num_bytes = [int(own_bytes(index).sum()) for index in indexes]
    held_bytes = [int(index.extent_decoded_bytes.sum()) for index in indexes]
    shares = np.array(list(_counts(resolved.request, chunks.num_samples))) / chunks.num_samples
    num_stored = np.array([index.num_samples for index in indexes])
    return PlannedData(
        num_samples=chunks.num_samples,
        num_bytes=sum(num_bytes),
        stored_bytes=sum(index.num_bytes for index in indexes),
        held_bytes=float(held.sum()),
        num_chunks=sum(num_chunks),
        num_read_chunks=chunks.num_distinct,
        sample_bytes=float((shares * num_bytes / num_stored).sum()),
        held_sample_bytes=float((shares * np.maximum(num_bytes, held_bytes) / num_stored).sum()),
        chunk_samples=np.concatenate([_chunk_samples(part) for part in resolved.parts]),
        chunk_bytes=chunks.num_bytes,
        order=windows,
        reading=MixtureReading(resolved, windows, chunks, asked),
        call=f"batch(global_batch_size={cluster.global_batch})" if asked is None else _call(asked),
        largest_held_bytes=float(held.max()),
        refusal=next(_refusals(names, resolved), ""),
        mixture=dataset,
        index_bytes=_index_bytes(dataset),
    )


def _refuse_unplanned(arguments: argparse.Namespace, cluster: Cluster) -> None:
    """Raise `UsageError` for options whose consequences are not planned for mixtures."""
    path = printed(source_of(arguments))
    if cluster.cache_bytes is not None:
        msg = (
            f"--cache is planned for one dataset, and {path} is a mixture, whose sources come round at different times"
        )
        raise UsageError(msg, hint="leave out --cache, or plan a source by itself")
    if arguments.pack_sequences is not None:
        msg = f"--pack-sequences is planned for one dataset, and {path} is a mixture"
        raise UsageError(msg, hint="`shoal mix FILE --pack-sequences LENGTH` counts its steps; or plan each source")
    if arguments.index is not None:
        msg = f"{path} is a mixture, and --index names the index of one dataset"
        raise UsageError(msg, hint="index: beside the path of a source, in the file")


def _shuffled(
    dataset: MixedDataset, arguments: argparse.Namespace, cluster: Cluster
) -> tuple[MixedDataset, OrderRequest | None]:
    """Return the mixture in its order, and the order that its sources were given; None if the file has it."""
    request = cast("MixRequest", dataset.stream.spec.request)
    if request.is_shuffled:
        return in_order_of(dataset, arguments), None
    is_given = bool(given_order_options(arguments))
    shuffled = in_order_of(dataset, arguments) if is_given else _as_recommended(dataset, cluster)
    return shuffled, cast("MixRequest", shuffled.stream.spec.request).asked


def _as_recommended(dataset: MixedDataset, cluster: Cluster) -> MixedDataset:
    """Return the mixture in the recommended window, with the largest chunks of which every source has enough."""
    indexes = [part.index for part in dataset.stream.spec.opened.parts]
    num_bytes = sum(int(own_bytes(index).sum()) for index in indexes)
    least = max(-(-int(own_bytes(index).sum()) // max(1, index.num_extents)) for index in indexes)
    room = beside(cluster, _index_bytes(dataset))
    sizing = recommend(room, dataset_bytes=num_bytes, least_chunk_bytes=max(least, _LEAST_CHUNK_BYTES))
    spec, chunk_bytes = dataset.stream.spec, sizing.chunk_bytes
    while chunk_bytes >= least:
        shuffled = MixedDataset(spec.in_order(OrderRequest(window=sizing.window_bytes, chunk=chunk_bytes)))
        if all(_has_window(part) for part in shuffled.resolved.parts):
            return shuffled
        chunk_bytes //= 2
    return MixedDataset(spec.in_order(OrderRequest(window=sizing.window_bytes)))


def _has_window(part: ResolvedOrder) -> bool:
    """Return whether the window of a source holds two chunks."""
    try:
        return part.extents_per_chunk > 0
    except UsageError:
        return False


def _order_of(name: str, part: ResolvedOrder) -> Any:
    try:
        order = windowed(part.order)
    except UsageError as error:
        msg = f"the source {name!r}: {error.message}"
        raise UsageError(msg, hint="shuffle: {window: ...} in the file, or --order window or block") from None
    if isinstance(part.units, RecordUnits):
        msg = f"the source {name!r} takes so few of its samples that they are read one by one, which is not planned"
        raise UsageError(msg, hint="plan the other sources, or leave out select: of this one")
    return order


def _chunks(resolved: ResolvedMixture, windows: MixedWindows, weights: NDArray[np.float64]) -> MixedChunks:
    """Return the chunks of all sources, and how often they are read in an epoch, or until every source has come."""
    request, parts = resolved.request, resolved.parts
    num_samples = resolved.num_positions(0)
    if num_samples >= FOREVER:
        num_samples = max(at for at in request.exhausted_at().values() if at is not None)
    counts = np.array(list(_counts(request, num_samples)), dtype=np.float64)
    samples = [_chunk_samples(part) for part in parts]
    sizes = np.array([part.num_ordered for part in parts])
    num_full = np.array([np.count_nonzero(each) for each in samples])
    apart = num_samples / np.maximum(1.0, counts)
    alive = np.array([min(order.chunks, few) for order, few in zip(windows.orders, num_full.tolist(), strict=True)])
    return MixedChunks(
        first_chunk=np.array(resolved.first_chunks),
        num_bytes=np.concatenate([_chunk_bytes(part) for part in parts]),
        weights=weights,
        visits_before=lambda position: np.array(list(_counts(request, position))) / sizes * num_full,
        num_full=num_full,
        window_positions=alive * (sizes / np.maximum(1, num_full)) * apart,
        round_positions=sizes * apart,
        num_samples=num_samples,
        last_change=_last_change(resolved, num_samples),
    )


def _last_change(resolved: ResolvedMixture, num_samples: int) -> int:
    """Return the position from which on weights stay as they are: the end if those of a nested mixture change."""
    if any(isinstance(source.request, MixRequest) and _changes(source.request) for source in resolved.request.sources):
        return num_samples
    order = innermost(resolved.untouched(0))
    return max((at for at in order.changes if at < num_samples), default=0) if isinstance(order, Changing) else 0


def _changes(request: MixRequest) -> bool:
    """Return whether weights change, of this mixture or of one that is nested in it."""
    inner = [source.request for source in request.sources if isinstance(source.request, MixRequest)]
    return len(request.changes) > 1 or any(map(_changes, inner))


def _counts(request: MixRequest, position: int) -> Iterator[int]:
    """Yield the samples of each dataset before a position of a mixture, those of nested mixtures among them."""
    for source, count in zip(request.sources, request.counts(position).tolist(), strict=True):
        if isinstance(source.request, MixRequest):
            yield from _counts(source.request, count)
        else:
            yield count


def _refusals(names: list[str], resolved: ResolvedMixture) -> Iterator[str]:
    for name, opened, part in zip(names, resolved.opened.parts, resolved.parts, strict=True):
        try:
            refuse_too_large(opened, part, None)
        except UsageError as error:
            yield f"the source {name!r}: {error}"


def _index_bytes(dataset: MixedDataset) -> float:
    return float(sum(num_column_bytes(part.index) for part in dataset.stream.spec.opened.parts))


def _call(asked: OrderRequest) -> str:
    sizes = {name: value for name, value in (("window", asked.window), ("chunk", asked.chunk)) if value is not None}
    said = [f'{name}="{bytes_text(size, is_enough=size.__eq__)}"'
            for name, size in ((name, parse_bytes(value, name)) for name, value in sizes.items())]  # fmt: skip
    nodes = asked.num_canonical_nodes
    said += [] if nodes is None else [f"num_canonical_nodes={nodes}"]
    said += [f"seed={asked.seed}"] if asked.seed else []
    return f"shuffle({', '.join(said if asked.order is None else [f'shoal.orders.{asked.order!r}', *said])})"


def _layout(part: ResolvedOrder) -> ChunkLayout:
    return ChunkLayout.of(_chunk_samples(part))


def _chunk_samples(part: ResolvedOrder) -> NDArray[np.int64]:
    return part.stored_between(part.order_borders)


def _chunk_bytes(part: ResolvedOrder) -> NDArray[np.int64]:
    return part.chunks.end_byte - part.chunks.first_byte


def _mean_bytes(part: ResolvedOrder) -> float:
    return float(_chunk_bytes(part).mean())
