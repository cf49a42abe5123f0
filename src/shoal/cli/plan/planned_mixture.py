"""Describe the mixture of a plan: the sources of a mixture file with their weights."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shoal.cli.options.source_options import source_of
from shoal.cli.options.stream_options import given_order_options, in_order_of, open_mixture
from shoal.cli.plan.planned_data import PlannedData, beside
from shoal.cli.plan.planned_reading import MixtureReading, chunk_bytes_of, windowed
from shoal.errors import UsageError
from shoal.figures import bytes_text, parse_bytes
from shoal.index.index_file import num_column_bytes
from shoal.index.table import own_bytes
from shoal.order.protocol import Changing, innermost
from shoal.reading.cache.large_chunks import refuse_too_large
from shoal.reading.mixture.mix_request import FOREVER, MixRequest
from shoal.reading.mixture.resolved_mixture import ResolvedMixture
from shoal.reading.order_request import OrderRequest
from shoal.reading.resolved_order import ResolvedOrder
from shoal.reading.schedule.units import RecordUnits
from shoal.storage.sources.source import printed
from shoal.stream.mixing.mixed_dataset import MixedDataset
from shoal.tools.planning.mixed_reads import MixedChunks
from shoal.tools.planning.rank_memory import MixedWindows
from shoal.tools.planning.sizing import Cluster, recommend

_LEAST_CHUNK_BYTES = 1 << 18


def planned_mixture(arguments: argparse.Namespace, cluster: Cluster, known: PlannedData | None = None) -> PlannedData:
    """Return the mixture of the arguments, in the order of its file, of the options, or the recommended order.

    ``known`` is the same mixture in another order; its sources are not opened again.
    """
    _refuse_unplanned(arguments, cluster)
    dataset = known.mixture if known is not None else None
    dataset = open_mixture(arguments) if dataset is None else dataset
    shuffled, request = _shuffled(dataset, arguments, cluster)
    resolved = shuffled.resolved
    names = [name for name, _ in resolved.request.leaves()]
    orders = [_order_of(name, part) for name, part in zip(names, resolved.parts, strict=True)]
    sizes = [part.num_ordered for part in resolved.parts]
    num_chunks = [len(part.chunks) for part in resolved.parts]
    windows = MixedWindows(orders, sizes, num_chunks, resolved.untouched(0).parameters)
    held = np.concatenate([np.maximum(part.chunks.decoded_bytes, chunk_bytes_of(part)) for part in resolved.parts])
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
        chunk_samples=np.concatenate([part.chunk_samples for part in resolved.parts]),
        chunk_bytes=chunks.num_bytes,
        order=windows,
        reading=MixtureReading(resolved, windows, chunks, request),
        call=f"batch(global_batch_size={cluster.global_batch})" if request is None else _call(request),
        largest_held_bytes=float(held.max()),
        refusal=next(_refusals(names, resolved), ""),
        mixture=dataset,
        index_bytes=_index_bytes(dataset),
    )


def _refuse_unplanned(arguments: argparse.Namespace, cluster: Cluster) -> None:
    """Raise `UsageError` for options without a plan for mixtures."""
    path = printed(source_of(arguments))
    if cluster.cache_bytes is not None:
        msg = f"--cache is planned for one dataset, but {path} is a mixture: its sources repeat at different times"
        raise UsageError(msg, hint="leave out --cache, or plan a source by itself")
    if arguments.pack_sequences is not None:
        msg = f"--pack-sequences is planned for one dataset, but {path} is a mixture"
        raise UsageError(msg, hint="`shoal mix FILE --pack-sequences LENGTH` counts its steps; or plan each source")
    if arguments.index is not None:
        msg = f"{path} is a mixture, but --index names the index of one dataset"
        raise UsageError(msg, hint="write index: beside the path of a source in the mixture file")


def _shuffled(
    dataset: MixedDataset, arguments: argparse.Namespace, cluster: Cluster
) -> tuple[MixedDataset, OrderRequest | None]:
    """Return the shuffled mixture, and the order given to its sources; None if the file has the order."""
    request = cast("MixRequest", dataset.stream.spec.request)
    if request.is_shuffled:
        return in_order_of(dataset, arguments), None
    has_options = bool(given_order_options(arguments))
    shuffled = in_order_of(dataset, arguments) if has_options else _as_recommended(dataset, cluster)
    return shuffled, cast("MixRequest", shuffled.stream.spec.request).order_request


def _as_recommended(dataset: MixedDataset, cluster: Cluster) -> MixedDataset:
    """Return the mixture in the recommended window, with the largest chunks that fit into all windows."""
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
    """Return True if the window of a source holds two chunks."""
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
        msg = f"the source {name!r} reads few of its samples, one by one; such reads are not planned"
        raise UsageError(msg, hint="plan the other sources, or leave out select: of this source")
    return order


def _chunks(resolved: ResolvedMixture, windows: MixedWindows, weights: NDArray[np.float64]) -> MixedChunks:
    """Return the chunks of all sources and their visits in an epoch, or until every source has finished a round."""
    request, parts = resolved.request, resolved.parts
    num_samples = resolved.num_positions(0)
    if num_samples >= FOREVER:
        num_samples = max(at for at in request.exhausted_at().values() if at is not None)
    counts = np.array(list(_counts(request, num_samples)), dtype=np.float64)
    samples = [part.chunk_samples for part in parts]
    sizes = np.array([part.num_ordered for part in parts])
    num_full = np.array([np.count_nonzero(counts) for counts in samples])
    apart = num_samples / np.maximum(1.0, counts)
    alive = np.array([min(order.chunks, num) for order, num in zip(windows.orders, num_full.tolist(), strict=True)])
    return MixedChunks(
        first_chunk=np.array(resolved.first_chunks),
        num_bytes=np.concatenate([chunk_bytes_of(part) for part in parts]),
        weights=weights,
        visits_before=lambda position: np.array(list(_counts(request, position))) / sizes * num_full,
        num_full=num_full,
        window_positions=alive * (sizes / np.maximum(1, num_full)) * apart,
        round_positions=sizes * apart,
        num_samples=num_samples,
        last_change=_last_change(resolved, num_samples),
    )


def _last_change(resolved: ResolvedMixture, num_samples: int) -> int:
    """Return the last position of a change of weights: the end if weights of a nested mixture change."""
    if any(isinstance(source.request, MixRequest) and _changes(source.request) for source in resolved.request.sources):
        return num_samples
    order = innermost(resolved.untouched(0))
    return max((at for at in order.changes if at < num_samples), default=0) if isinstance(order, Changing) else 0


def _changes(request: MixRequest) -> bool:
    """Return True if weights of this mixture or of a nested mixture change."""
    inner = [source.request for source in request.sources if isinstance(source.request, MixRequest)]
    return len(request.changes) > 1 or any(map(_changes, inner))


def _counts(request: MixRequest, position: int) -> Iterator[int]:
    """Yield the samples of each dataset, also of nested mixtures, before a position of a mixture."""
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


def _call(request: OrderRequest) -> str:
    sizes = {name: value for name, value in (("window", request.window), ("chunk", request.chunk)) if value is not None}
    words = [f'{name}="{bytes_text(size, is_enough=size.__eq__)}"'
            for name, size in ((name, parse_bytes(value, name)) for name, value in sizes.items())]  # fmt: skip
    nodes = request.num_canonical_nodes
    words += [] if nodes is None else [f"num_canonical_nodes={nodes}"]
    words += [f"seed={request.seed}"] if request.seed else []
    return f"shuffle({', '.join(words if request.order is None else [f'shoal.orders.{request.order!r}', *words])})"
