"""The `shoal index` command: find every sample of shards, and record its position."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from shoal.cli import output
from shoal.cli.display.progress_bar import Progress
from shoal.cli.options.argument_types import names
from shoal.cli.options.engine_options import Engine, add_engine_arguments, engine_of
from shoal.cli.options.index_output import IndexOutput, index_file, index_output
from shoal.cli.options.source_options import (
    add_format_argument,
    add_json_argument,
    add_shards_argument,
    refuse_mixture,
    source_of,
    storage_options_of,
)
from shoal.cli.shards.index_append import add_append_arguments, append, check_append_arguments
from shoal.cli.shards.index_plan import add_plan_arguments, check_plan_arguments, run_plan
from shoal.errors import SourceError, UsageError
from shoal.figures import counted, parse_bytes
from shoal.formats.column_paths import Column, as_columns
from shoal.formats.shard_format import Format
from shoal.hints import pip_install
from shoal.index.cutting import usual_extent_bytes
from shoal.index.generations import generations_of
from shoal.index.table import Index, own_bytes
from shoal.indexing.build import build_index
from shoal.indexing.changed_shards import ShardCheck, describes
from shoal.indexing.checksums import extent_checksums
from shoal.indexing.index_files import load_index, made_on_purpose
from shoal.indexing.jobs.index_job import index_job
from shoal.indexing.manifests_beside import Described, compare_hashes
from shoal.indexing.open_source import (
    choose_format,
    described_shards,
    format_of_index,
    open_source,
    refuse_unfinished,
    shards_of,
)
from shoal.indexing.opened_dataset import Opened
from shoal.indexing.scan.remote_scans import ScanTraffic
from shoal.indexing.split_selection import select_split
from shoal.pipeline.sample_columns.added_columns import COLUMN_SOURCES, add_columns, new_columns
from shoal.reading.checks.record_checksums import RECORD_CRCS
from shoal.storage.retry import with_retries
from shoal.storage.sources.shard_selection import INDEX_NAME
from shoal.storage.sources.source import Source, schemes_of
from shoal.storage.stat_many import stat_all
from shoal.storage.store_of_url import open_store
from shoal.storage.store_protocol import Store
from shoal.tools.samples.preview import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.epilog = (
        "Every shoal.open() finds an index beside its shards. Saved states belong to the extents of an index, so an "
        "index with another --extent-bytes refuses old states."
    )
    add_shards_argument(parser)
    parser.add_argument("--output", metavar="FILE", help=f"file or URL (default: {INDEX_NAME} beside the shards)")
    text = "size of the smallest ranges of the index (default: 64KiB; more above 655 GB)"
    parser.add_argument("--extent-bytes", metavar="BYTES", help=text)
    text = "read all bytes, record a CRC-32 of each extent, and compare the hashes of an index.json"
    parser.add_argument("--checksum", action="store_true", help=text)
    text = "processes that scan (default: one per processor; 0 below 256 MiB, or below 1 GiB of remote shards)"
    parser.add_argument("--workers", type=int, metavar="N", help=text)
    text = (
        "read columns from all samples into the index: fields, paths into JSON such as meta.lang, or lengths such as "
        "tokens:len, separated by commas; NAME=PATH renames a column; an existing index keeps its columns"
    )
    parser.add_argument("--columns", type=names, action="extend", metavar="NAMES", default=[], help=text)
    text = "value of a column for samples without a value (default: an error); may be repeated"
    parser.add_argument("--missing", metavar="NAME=VALUE", action="append", default=[], help=text)
    add_format_argument(parser)
    add_append_arguments(parser)
    add_plan_arguments(parser)
    add_engine_arguments(parser, planned="this machine lists the shards and writes the index")
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Build an index, or add columns to an existing index, and write it."""
    refuse_mixture(arguments)
    source = source_of(arguments)
    options = storage_options_of(arguments)
    store = with_retries(open_store(source, options), options)
    columns = as_columns(arguments.columns)
    engine = engine_of(arguments, label="indexing", unit="units")
    check_plan_arguments(arguments, engine)
    check_append_arguments(arguments)
    if engine is not None and columns:
        msg = f"--columns reads samples on this machine, but --engine {engine.name} builds the index elsewhere"
        raise UsageError(msg, hint="build the index first, then run `shoal index FILE --columns`")
    if engine is not None and arguments.workers is not None:
        msg = f"--workers counts processes of this machine, but --engine {engine.name} has its own"
        raise UsageError(msg, hint="leave out --workers")
    shards, suffixes = shards_of(source, arguments.format, store)
    if shards.kind == "index":
        return _run_on_index(arguments, shards.paths[0], columns, store)
    shards = select_split(shards, arguments.split, suffixes=suffixes, store=store).source
    described = described_shards(shards, arguments.format, store)
    shards = described.source
    refuse_unfinished(shards, store)
    shard_format = choose_format(shards, described.format or arguments.format)
    if arguments.plan:
        return run_plan(arguments, described, shard_format, store)
    target = index_output(arguments, shards, shard_format, store)
    before = target.existing()
    began_seconds = time.monotonic()
    if arguments.append:
        index = append(arguments, target, before, described, store)
        return _report(arguments, target, before, index, target.write(index), began_seconds)
    if columns and before is not None and (opened := _same_dataset(before, shards, arguments, store)) is not None:
        index = _extended(opened, arguments, columns)
        return _report(arguments, target, before, index, target.write(index), began_seconds)
    if before is not None and arguments.output is None:
        _refuse_to_drop_columns(before, printable(target.path), columns)
    if engine is not None:
        return _run_on_engine(arguments, engine, described, shard_format, store, target, before)
    traffic = ScanTraffic()
    index = _build(described, shard_format, arguments, store, traffic)
    scan_seconds = time.monotonic() - began_seconds
    if not index.num_samples:
        others = output.format_value("", index.notes)
        msg = f"{shards.typed}: {counted(index.num_shards, 'shard')} without a single sample; found: {others}"
        raise UsageError(msg, hint="nothing was written; check the format of the shards")
    if arguments.checksum:
        _note_unknown_hashes(described, num_compared=compare_hashes(described, store))
        index = _with_checksums(index, shards.paths, shard_format, store)
    if columns:
        check = ShardCheck(index, shards.paths, store=store, format=shard_format)
        opened = Opened(store, index, shards.paths, shard_format, None, check)
        index = _columns_added(opened, columns, _missing_of(arguments))
    more: dict[str, Any] = {"scanned_samples_per_second": index.num_samples / max(scan_seconds, 1e-9)}
    if traffic.num_requests:
        more["scan"] = asdict(traffic) if arguments.json else str(traffic)
    return _report(arguments, target, before, index, target.write(index), began_seconds, more)


def _run_on_engine(
    arguments: argparse.Namespace,
    engine: Engine,
    described: Described,
    shard_format: Format,
    store: Store,
    target: IndexOutput,
    before: Index | None,
) -> int:
    """Scan the shards on a cluster, and write the index."""
    began_seconds = time.monotonic()
    options = storage_options_of(arguments) if schemes_of([target.path]) == schemes_of(described.source.paths) else None
    job = index_job(
        described,
        store,
        shard_format,
        path=target.path,
        options=options,
        extent_bytes=_extent_bytes(arguments),
        checksum=arguments.checksum,
    )
    num_missing = len(job.missing())
    done = engine.run(job)
    if arguments.checksum:
        _note_unknown_hashes(described, num_compared=done.num_hashed)
    more = {**engine.record(), "num_units_done_before": job.num_units - num_missing, "num_units_run": num_missing}
    index = load_index(target.path, store=target.store)
    return _report(arguments, target, before, index, target.store.stat(target.path).num_bytes, began_seconds, more)


def _run_on_index(arguments: argparse.Namespace, path: str, columns: Sequence[Column], store: Store) -> int:
    """Add columns to the index file that SOURCE names."""
    if not columns:
        msg = f"{printable(path)}: the file is already an index"
        raise SourceError(msg, hint="--columns adds columns to the index; `shoal info` shows its content")
    options = {
        "--extent-bytes": arguments.extent_bytes is not None,
        "--split without --output": arguments.split is not None and arguments.output is None,
    }
    if wrong := [option for option, is_given in options.items() if is_given]:
        msg = f"{printable(path)}: columns are added to this index, but {wrong[0]} asks for another index"
        raise UsageError(msg, hint="name the shards to build a new index")
    began_seconds = time.monotonic()
    storage_options = storage_options_of(arguments)
    opened = open_source(path, split=arguments.split, format=arguments.format, storage_options=storage_options)
    target = index_file(arguments, path, store)
    before, index = target.existing(), _extended(opened, arguments, columns)
    return _report(arguments, target, before, index, target.write(index), began_seconds)


def _extended(opened: Opened, arguments: argparse.Namespace, columns: Sequence[Column]) -> Index:
    """Return the index with additional columns, and with checksums if requested."""
    index = made_on_purpose(_columns_added(opened, columns, _missing_of(arguments)))
    if arguments.checksum and index.extent_checksum is None:
        return _with_checksums(index, opened.paths, opened.format, opened.store)
    return index


def _same_dataset(before: Index, shards: Source, arguments: argparse.Namespace, store: Store) -> Opened | None:
    """Return the dataset of an existing index if a new index would be the same; else None."""
    infos = stat_all(shards.paths, store)
    extent_bytes = _extent_bytes(arguments) or usual_extent_bytes(sum(info.num_bytes for info in infos))
    is_same = len(before.shard_names) == len(shards.names) and describes(before, shards, infos)
    if not is_same or before.metadata.get("extent_bytes", extent_bytes) != extent_bytes:
        return None
    shard_format = format_of_index(before, shards.typed, arguments.format)
    path_of = dict(zip(shards.names, shards.paths, strict=True))
    paths = tuple(path_of[name] for name in before.shard_names)
    check = ShardCheck(before, paths, store=store, format=shard_format)
    return Opened(store, before, paths, shard_format, None, check)


def _report(
    arguments: argparse.Namespace,
    target: IndexOutput,
    before: Index | None,
    index: Index,
    file_bytes: int,
    began_seconds: float,
    more: dict[str, Any] | None = None,
) -> int:
    """Report the content of the written index, and the losses from the old index."""
    record = {
        "index": printable(target.path),
        "file_bytes": file_bytes,
        "format": index.format,
        "num_shards": index.num_shards,
        "num_samples": index.num_samples,
        "num_bytes": index.num_bytes,
        "mean_sample_bytes": int(own_bytes(index).sum()) / index.num_samples,
        "num_extents": index.num_extents,
        "mean_extent_bytes": float((index.extent_end_byte - index.extent_first_byte).mean()),
        "checksums": index.extent_checksum is not None,
        "columns": [name for name in index.columns if name != RECORD_CRCS],
        "not_indexed": dict(index.notes),
        "fingerprint": index.fingerprint,
        "elapsed_seconds": time.monotonic() - began_seconds,
        **(more or {}),
    }
    usual: dict[str, Any] = {"not_indexed": {}, "columns": []}
    output.emit(record if arguments.json else output.without_usual(record, **usual), as_json=arguments.json)
    if before is not None:
        _note_losses(before, index)
    return 0


def _note_unknown_hashes(described: Described, *, num_compared: int) -> None:
    hashes = [expected.hashes for expected in described.expected.values() if expected.hashes]
    if num_compared < len(hashes):
        names = ", ".join(sorted({name for names in hashes for name in names}))
        output.complain(
            f"note: the hashes of {len(hashes) - num_compared} of {len(hashes)} shards ({names}) were not compared: "
            f"hashes of xxhash need that library: {pip_install('xxhash')}"
        )


def _refuse_to_drop_columns(before: Index, path: str, columns: Sequence[Column]) -> None:
    kept = {RECORD_CRCS, *(column.name for column in columns)}
    if lost := [name for name in before.columns if name not in kept]:
        sources = before.metadata.get(COLUMN_SOURCES, {})
        known = [(name, sources[name]["asked"]) for name in lost if name in sources]
        words = [name if name == column else f"{name}={column}" for name, column in known]
        msg = f"{path}: the existing index has the columns {', '.join(lost)}, but a scan of headers cannot find them"
        again = f"--columns {','.join(words)} reads them again; " if words else ""
        keeps = "`shoal verify --repair-index` keeps them"
        hint = f"{again}{keeps}; --output FILE writes an index without columns elsewhere, or here: {path}"
        raise UsageError(msg, hint=hint)


def _note_losses(before: Index, index: Index) -> None:
    if columns := [name for name in before.columns if name not in index.columns]:
        output.complain(f"note: the old index had the columns {', '.join(columns)}, but the new index lacks them")
    if before.fingerprint in {generation.fingerprint for generation in generations_of(index)[:-1]}:
        return  # states of the old index find it in the new index
    if before.fingerprint != index.fingerprint:
        states = f"states saved with the old index ({before.fingerprint}) belong to other shards or extents"
        output.complain(f"note: {states}, but the new index refuses them")
    elif before.extent_checksum is not None and index.extent_checksum is None:
        output.complain("note: the old index had checksums, but the new index has none; --checksum adds them")


def _extent_bytes(arguments: argparse.Namespace) -> int | None:
    return None if arguments.extent_bytes is None else parse_bytes(arguments.extent_bytes, "--extent-bytes")


def _build(
    described: Described, shard_format: Format, arguments: argparse.Namespace, store: Store, traffic: ScanTraffic
) -> Index:
    with Progress(label="indexing", unit="bytes") as progress:
        return build_index(
            described.source,
            store=store,
            format=shard_format,
            extent_bytes=_extent_bytes(arguments),
            workers=arguments.workers,
            progress=progress.show_bytes,
            traffic=traffic,
            expected=described.expected,
            rows=described.rows,
        )


def _with_checksums(index: Index, paths: Sequence[str], shard_format: Format, store: Store) -> Index:
    check = ShardCheck(index, paths, store=store, format=shard_format)
    with Progress(label="checksums", unit="bytes") as progress:
        checksums = extent_checksums(index, paths, store=store, check=check.check, progress=progress.show_bytes)
    return replace(index, extent_checksum=checksums)


def _missing_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the value for samples without a value, by column."""
    pairs = [word.partition("=") for word in arguments.missing]
    if wrong := [word for word, (name, sign, _) in zip(arguments.missing, pairs, strict=True) if not (name and sign)]:
        raise UsageError(f"--missing takes NAME=VALUE; got {wrong[0]!r}", hint="--missing label=-1")
    return {name: value for name, _, value in pairs}


def _columns_added(opened: Opened, columns: Sequence[Column], missing: Mapping[str, str]) -> Index:
    """Add missing columns to the index, and note the number of samples without a value."""
    new_names = {column.name for column in new_columns(opened.index, columns, missing)}
    with Progress(label="columns", unit="bytes") as progress:
        index = add_columns(opened, columns, missing=missing, progress=progress.show_bytes)
    for name in new_names:
        about = index.metadata[COLUMN_SOURCES][name]
        if num_missing := about.get("num_missing"):
            samples = f"{num_missing:,} of {counted(index.num_samples, 'sample')}"
            value = f"{about['missing']!r} in the column {printable(name)!r}"
            output.complain(f"note: {samples} have no {about['asked']!r}, and get {value}")
    return index
