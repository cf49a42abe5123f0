"""The `shoal info` command: show the content of a dataset, its index, and its shuffle."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.cli import output
from shoal.cli.options.argument_types import at_least_one
from shoal.cli.options.source_options import add_json_argument, add_source_arguments, open_requested
from shoal.cli.options.stream_options import add_order_arguments, requested_order
from shoal.figures import counted, format_bytes, format_count, lacking
from shoal.index.assembly import SNAPSHOT
from shoal.index.table import Index, own_bytes
from shoal.indexing.changed_shards import looks_indexed
from shoal.indexing.opened_dataset import Opened
from shoal.order.window.order import Window
from shoal.pack.inputs.sample_fields import SampleFields
from shoal.pipeline.sample_columns.added_columns import COLUMN_SOURCES
from shoal.reading.resolved_order import ResolvedOrder
from shoal.storage.sources.shard_selection import INDEX_NAME
from shoal.storage.stat_many import stat_all
from shoal.storage.urls import parent, scheme_of
from shoal.stream.choosing.index_columns import column_names, column_of, words_of_column
from shoal.stream.quality.shuffle_quality import variance_ratio_bound, warning_about
from shoal.tools.samples.preview import field_counts_text, printable, without_usual_text

_QUANTILES = {"median_bytes": 0.5, "p5_bytes": 0.05, "p95_bytes": 0.95}
_EXACT_SAMPLES = 10**7  # above this, quantiles come from about a million evenly spaced samples
_GLOBAL_BATCHES = (256, 1024, 4096)
_SHOWN_TEXTS = 10  # texts of a column


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.epilog = (
        "The variance ratio compares the variance of the means of global batches with a perfect shuffle (1). If all "
        "samples of a chunk are alike, the ratio reaches the bound."
    )
    add_source_arguments(parser)
    add_order_arguments(parser, default="default: shuffle()")
    text = f"samples of a global batch (default: {', '.join(map(str, _GLOBAL_BATCHES))})"
    parser.add_argument("--global-batch", type=at_least_one, metavar="N", help=text)
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the dataset, its index and its order."""
    request = requested_order(arguments)
    opened, index_was_made = open_requested(arguments)
    origin = _origin(opened, index_was_made=index_was_made, is_given=arguments.index is not None)
    record = {**_dataset(opened), "index": _index(opened, origin)}
    if (version := opened.index.metadata.get(SNAPSHOT)) is not None:
        left = opened.index.num_samples if opened.stored is None else len(opened.stored)
        record = {"table": version, **record, "num_deleted": opened.index.num_samples - left}
    if opened.index.num_samples:
        resolved = ResolvedOrder(opened.index, request, stored=opened.stored)
        batch: int | None = arguments.global_batch
        warning = None if batch is None else warning_about(resolved, batch) or None
        record["order"] = _order(resolved, _GLOBAL_BATCHES if batch is None else (batch,)) | {"warning": warning}
    if arguments.json:
        output.emit(record, as_json=True)
    else:
        _show(record)
    return 0


def _show(record: Mapping[str, Any]) -> None:
    """Print the dataset, its index and its order, without expected values."""
    facts = dict(record)
    if (version := facts.pop("table", None)) is not None:
        facts = {"table": ", ".join(f"{name} {value}" for name, value in version.items()), **facts}
    if (fields := facts.pop("fields")) is not None:
        fields = SampleFields(**fields)
        facts["fields"] = field_counts_text(fields)
        if fields.num_without_usual:
            usual = " or ".join(map(printable, fields.usual))
            facts["fields"] += f"; {lacking(fields.num_without_usual, 'sample')} {usual}: {without_usual_text(fields)}"
    index, order = dict(facts.pop("index")), facts.pop("order", None)
    for name in ("shard_bytes", "sample_bytes"):
        facts[f"{name.removesuffix('_bytes')} size"] = _sizes_text(facts.pop(name))
    output.emit(output.without_usual(facts, not_indexed={}))
    output.say()
    index = {"index": index.pop("path"), **index, "extent size": _sizes_text(index["extent_bytes"])}
    index |= {"columns": _columns_text(index["columns"]), "extent_bytes": None}
    output.emit(output.without_usual(index, num_resized_shards=0, num_touched_shards=0, sample_sizes=True))
    if order is not None:
        output.say()
        _show_order(order)


def _show_order(order: Mapping[str, Any]) -> None:
    mean_size = format_bytes(order["chunk_bytes"]["mean_bytes"])
    samples = format_count(order["chunk_samples"])
    lines = {
        "order": order["name"],
        "chunks": f"{order['num_chunks']:,} of {mean_size} and {samples} samples on average",
    }
    if order["window_chunks"] is not None:
        size = f"{format_bytes(order['window_bytes'])} and {counted(order['window_samples'], 'sample')}"
        lines["window"] = (
            f"{counted(order['window_chunks'], 'chunk')} with {size}, {order['window_share']:.0%} of the dataset"
        )
        lines["canonical nodes"] = str(order["num_canonical_nodes"])
    lines["as a call"] = f"ds.{order['call']}"
    output.emit(lines)
    if order["bounds"]:
        output.say()
        output.say(output.format_table(order["bounds"]))
    if order["warning"]:
        output.complain(f"warning: {order['warning']}")


def _sizes_text(sizes: Mapping[str, float]) -> str:
    """Return the smallest and the largest size, then the other sizes."""
    texts = {name.removesuffix("_bytes"): format_bytes(value) for name, value in sizes.items()}
    least, most = texts.pop("min", None), texts.pop("max", None)
    if least is not None and sizes["min_bytes"] == sizes["max_bytes"]:
        return f"{least} each"
    return ", ".join([*([f"{least} to {most}"] if least else []), *(f"{name} {text}" for name, text in texts.items())])


def _dataset(opened: Opened) -> dict[str, Any]:
    index, fields = opened.index, SampleFields.of_index(opened.index)
    samples: dict[str, Any] = {"mean_bytes": float(own_bytes(index).sum()) / max(1, index.num_samples)}
    if index.sample_bytes is not None and index.num_samples:
        sizes: NDArray[Any] = index.sample_bytes
        chosen = sizes if len(sizes) <= _EXACT_SAMPLES else sizes[:: len(sizes) // 10**6]
        quantiles = np.quantile(chosen, list(_QUANTILES.values()), method="inverted_cdf").tolist()
        samples = _ends(sizes) | {name: int(value) for name, value in zip(_QUANTILES, quantiles, strict=True)}
    return {
        "format": index.format,
        "num_shards": index.num_shards,
        "num_samples": index.num_samples,
        "num_bytes": index.num_bytes,
        "shard_bytes": _ends(index.shard_bytes),
        "sample_bytes": samples,
        "not_indexed": dict(index.notes),
        "fields": None if fields is None else fields.to_dict(),
    }


def _index(opened: Opened, origin: str) -> dict[str, Any]:
    index, path = opened.index, opened.index_path
    infos = stat_all(opened.paths, opened.store)
    changed = [shard for shard, info in enumerate(infos) if not looks_indexed(index, shard, info)]
    resized = [shard for shard in changed if infos[shard].num_bytes != int(index.shard_bytes[shard])]
    stat = None if path is None or scheme_of(path) else Path(path).stat()
    return {
        "path": None if path is None else printable(path),
        "origin": origin,
        "file_bytes": None if stat is None else stat.st_size,
        "age_seconds": None if stat is None else max(0.0, time.time() - stat.st_mtime),
        "num_extents": index.num_extents,
        "extent_bytes": _ends(index.extent_end_byte - index.extent_first_byte),
        "sample_sizes": index.sample_bytes is not None,
        "checksums": index.extent_checksum is not None,
        # Another size means another shard; another time or etag is usually a copy, checked before use.
        "num_resized_shards": len(resized),
        "num_touched_shards": len(changed) - len(resized),
        "columns": _columns(index),
        "fingerprint": index.fingerprint,
    }


def _columns(index: Index) -> dict[str, Any]:
    """Return the type, some texts, and the origin of each column that `select` can query."""
    columns: dict[str, Any] = {}
    for name in column_names(index):
        words = words_of_column(index, name)
        texts = {} if words is None else {"num_texts": len(words), "texts": list(words[:_SHOWN_TEXTS])}
        read_from = index.metadata.get(COLUMN_SOURCES, {}).get(name, {})
        source = {fact: read_from[fact] for fact in ("path", "num_missing", "missing") if fact in read_from}
        columns[name] = {"type": str(column_of(index, name).dtype), **texts, **source}
    return columns


def _columns_text(columns: Mapping[str, Any]) -> str | None:
    """Return the columns as one line; None without columns."""
    parts = []
    for name, about in columns.items():
        texts = ""
        if "texts" in about:
            more = ", ..." if about["num_texts"] > len(about["texts"]) else ""
            texts = f", {about['num_texts']:,} texts: {', '.join(map(printable, about['texts']))}{more}"
        if about.get("path", name) != name:
            texts += f", from {printable(about['path'])}"
        if "num_missing" in about:
            texts += f", {about['num_missing']:,} missing as {printable(str(about['missing']))}"
        parts.append(f"{printable(name)} ({about['type']}{texts})")
    return "; ".join(parts) or None


def _origin(opened: Opened, *, index_was_made: bool, is_given: bool) -> str:
    path = opened.index_path
    if index_was_made:
        return "made now; it is kept for the next time" if path is not None else "made now, but could not be kept"
    if is_given:
        return "given"
    if path is not None and any(_is_above(path, shard) for shard in opened.paths):
        return "beside the shards"
    return f"made by this machine before; `shoal index` makes a {INDEX_NAME}"


def _is_above(index_path: str, shard: str) -> bool:
    """Return True if the shard lies in or below the directory of the index."""
    if scheme_of(index_path):
        return shard.startswith(f"{parent(index_path)}/")
    return not scheme_of(shard) and Path(index_path).parent in Path(shard).parents


def _order(resolved: ResolvedOrder, batches: tuple[int, ...]) -> dict[str, Any]:
    order, chunks = resolved.order, resolved.chunks
    chunk_bytes = chunks.end_byte - chunks.first_byte
    alive = min(order.chunks, len(chunks)) if isinstance(order, Window) else None
    bounds = [(batch, variance_ratio_bound(resolved, batch)) for batch in batches]
    return {
        "name": order.name,
        "num_chunks": len(chunks),
        "chunk_bytes": _ends(chunk_bytes),
        "chunk_samples": float(chunks.num_samples.mean()),
        "window_chunks": alive,
        "window_bytes": None if alive is None else float(chunk_bytes.mean()) * alive,
        "window_samples": None if alive is None else round(float(chunks.num_samples.mean()) * alive),
        "window_share": None if alive is None else alive / len(chunks),
        "num_canonical_nodes": order.resolved_nodes if isinstance(order, Window) else None,
        "bounds": [
            {"global_batch": batch, "variance_ratio_at_most": bound} for batch, bound in bounds if bound is not None
        ],
        "call": str(resolved),
    }


def _ends(sizes: NDArray[Any]) -> dict[str, float]:
    """Return the smallest, mean and largest size in bytes."""
    if not len(sizes):
        return {}
    return {"min_bytes": int(sizes.min()), "mean_bytes": float(sizes.mean()), "max_bytes": int(sizes.max())}
