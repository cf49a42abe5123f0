"""Plan the same window in chunks of other sizes: smaller chunks mix better, and take more requests."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shoal.cli import output
from shoal.cli.plan.planned import Planned
from shoal.cli.plan.planned_reading import PlannedReading
from shoal.cli.plan.requested_plan import changed_plan, option_words
from shoal.figures import format_bytes, format_count
from shoal.quality.curves import MOST_NEAR_RATIO, near_variance_ratio
from shoal.tools.planning.sizing import Cluster
from shoal.tools.reports.chunk_size_figure import VR_OF_FOUR, ChunkSize, largest_mixed

_LARGEST_CHUNK_BYTES = 8 << 20  # larger chunks take no fewer requests
_LIKE_THE_PLAN = 0.8  # chunks of at least this share of the planned chunks, or the inverse, are not worth a row


def planned_chunk_sizes(arguments: argparse.Namespace, plan: Planned) -> list[ChunkSize]:
    """Return the plan, and its window in chunks of one extent, two, four ... up to 8 MiB; smallest first.

    Empty if no other size is possible, or if the data are too few for a VR.
    """
    # Packing again would take seconds for each size, and change the number of documents in a batch by little.
    same = {"pack_sequences": None, "global_batch": plan.cluster.global_batch}
    sizes = [_size(plan, {}, is_planned=True)]
    for options in _options(plan.data.reading, plan.data.order.chunks):
        changed = changed_plan(arguments, {**options, **same}, plan)
        sizes.append(None if changed is None else _size(changed, options, is_planned=False))
    # Chunks end with their shard: in small shards, several sizes give the same chunks.
    by_bytes = {size.chunk_bytes: size for size in reversed(sizes) if size is not None}
    return [by_bytes[chunk_bytes] for chunk_bytes in sorted(by_bytes)] if len(by_bytes) > 1 else []


def chunk_size_text(plan: Planned, ratios: Mapping[int, float], sizes: Sequence[ChunkSize] | None) -> str:
    """Return the lines of a terminal about ``sizes``, or how to ask for them if they are None; may be empty.

    ``ratios`` is the VR of the plan by batch size.
    """
    if sizes is None:
        own, least = plan.data.reading.option_chunk_bytes, plan.data.reading.least_chunk_bytes
        is_mixed = not ratios or near_variance_ratio(ratios, plan.cluster.global_batch) <= MOST_NEAR_RATIO
        if is_mixed or own is None or least > _LIKE_THE_PLAN * own:
            return ""
        return "Smaller chunks in the same window mix better: --chunk-sizes plans them."
    if not sizes:
        return "No other size of chunks is possible in this window."
    table = _table(sizes, plan.cluster)
    return "\n".join(filter(None, ["\nthe same window in chunks of other sizes:", table, _advice(sizes)]))


def _table(sizes: Sequence[ChunkSize], cluster: Cluster) -> str:
    """Return the sizes as a table for a terminal."""
    rows: list[dict[str, Any]] = []
    for size in sizes:
        row = {
            "chunk_bytes": size.chunk_bytes,
            "num_chunks": size.window_chunks,
            VR_OF_FOUR: f"{size.near_vr:.2f}".rjust(len(VR_OF_FOUR)),
            "num_requests": size.num_requests,
            "node_requests_per_second": size.node_requests_per_second,
            "node_memory_bytes": size.node_memory_bytes,
        }
        waiting = {"waiting": f"{size.waiting_share:.1%}".rjust(len("waiting"))}
        row |= waiting if cluster.step_seconds else {"delivered_bytes_per_second": size.delivered_bytes_per_second}
        row |= {"epoch_price": size.epoch_price} if any(each.epoch_price for each in sizes) else {}
        rows.append(row | {"": "this plan" if size.is_planned else ""})
    return output.format_table(rows)


def _advice(sizes: Sequence[ChunkSize]) -> str:
    """Return the largest chunks that mix well enough, and their requests; empty if the planned chunks do."""
    planned = next(size for size in sizes if size.is_planned)
    if planned.near_vr <= MOST_NEAR_RATIO:
        return ""
    if (mixed := largest_mixed(sizes)) is None:
        return (
            f"No chunks bring the {VR_OF_FOUR} to {MOST_NEAR_RATIO:g} in this window: a larger window does, or an "
            "index with smaller extents (shoal index --extent-bytes)."
        )
    requests = f"{format_count(mixed.num_requests)} requests of an epoch, not {format_count(planned.num_requests)}"
    chunks = f"Chunks of {format_bytes(mixed.chunk_bytes)} bring the {VR_OF_FOUR} to {mixed.near_vr:.2f}"
    return f"{chunks}, for {requests}:\n{mixed.options}"


def _options(reading: PlannedReading, window_chunks: int) -> Iterator[Mapping[str, Any]]:
    """Yield the options of the same window in each other size of chunks."""
    own, size = reading.option_chunk_bytes, reading.least_chunk_bytes
    if own is None:
        return
    while size <= min(_LARGEST_CHUNK_BYTES, window_chunks * own / 2):
        is_other = not _LIKE_THE_PLAN < size / own < 1.0 / _LIKE_THE_PLAN
        if is_other and (options := reading.options(chunk=size / own)) is not None:
            yield options
        size *= 2


def _size(plan: Planned, options: Mapping[str, Any], *, is_planned: bool) -> ChunkSize | None:
    record = plan.record()
    if not record["vr"]:
        return None
    same = ("chunk_bytes", "window_chunks", "num_requests", "node_requests_per_second", "node_traffic_bytes_per_second")
    return ChunkSize(
        **{name: record[name] for name in (*same, "node_memory_bytes", "waiting_share", "epoch_price")},
        near_vr=near_variance_ratio(record["vr"], plan.cluster.global_batch),
        delivered_bytes_per_second=plan.data.num_bytes / record["epoch_seconds"],
        options=option_words(options),
        is_planned=is_planned,
    )
