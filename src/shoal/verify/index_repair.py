"""Repair of an index whose shards are sound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from shoal.errors import IndexFileError, UsageError
from shoal.figures import counted
from shoal.formats.metadata.manifests import MANIFEST_NAME
from shoal.index.cutting import EXTENT_BYTES
from shoal.index.index_file import decode
from shoal.index.table import Index
from shoal.indexing.build import build_index
from shoal.indexing.changed_shards import ShardCheck, rows_of
from shoal.indexing.checksums import extent_checksums, record_checksums
from shoal.indexing.index_files import save_index
from shoal.indexing.opened_dataset import Opened
from shoal.reading.checks.record_checksums import FRAMES, RECORD_CRCS
from shoal.storage.stat_many import stat_all
from shoal.storage.store_protocol import Store
from shoal.storage.urls import scheme_of
from shoal.verify.open_to_verify import Verification, has_manifest, write_manifest
from shoal.verify.shard_checks import check_shards
from shoal.verify.verify_report import Damage, VerifyReport

_SHARD_METADATA = ("digests", "plan", "marks", FRAMES)  # metadata of a packing about the bytes of its shards


def repair_index(
    dataset: Verification,
    report: VerifyReport,
    *,
    output: tuple[str, Store] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Index, list[Damage]]:
    """Rewrite an index if only the index is wrong; return it, and damages that prevented the write.

    ``output`` is a path and its store; None replaces the old index. Samples of the old index stay unchanged. The shards
    are read completely once more, and nothing is written unless all their samples can be parsed. Checksums of samples
    are recomputed; other columns are kept if no sample is new.

    Raises `UsageError` if shards are damaged, values of a column are unknown for new samples, or the index is not a
    writable file; and `ShoalError` if `build_index` fails, or the index cannot be written.
    """
    path, index_store = dataset.index_path, dataset.index_store
    if path is None or index_store is None:
        msg = "there is no index file to repair beside these shards"
        raise UsageError(msg, hint="`shoal index` makes one")
    if output is None and scheme_of(path) in ("http", "https"):
        msg = f"{path}: the index cannot be written here: nothing is written over http"
        raise UsageError(msg, hint="write it elsewhere with output=, and copy it beside the shards, or pass index=")
    where, to = (path, index_store) if output is None else output
    if lost := [damage for damage in report.damages if not damage.is_of_index]:
        msg = f"the index was left as it is: shards are damaged too, first {lost[0].shard}"
        raise UsageError(msg, hint="restore the shards; or run `shoal index`, which takes shards as they are")
    old = None if dataset.opened is None else dataset.opened.index
    if old is not None and output is None:
        _refuse_part(old, path, index_store)
    lost_columns = _columns_of(path, index_store) if old is None else set()
    if own := sorted(lost_columns - {RECORD_CRCS}):
        msg = f"the index was left as it is: it has the columns {', '.join(own)}, and it is unknown which of their "
        msg += "values are right"
        raise UsageError(msg, hint="restore the file; `shoal index` makes an index without them")
    if old is not None and not report.damages:
        infos = stat_all(dataset.opened.paths if dataset.opened is not None else (), dataset.store)
        repaired = replace(old, shard_versions=tuple(info.version for info in infos))
        save_index(repaired, where, store=to)
        return repaired, []
    if old is not None and all(damage.shard == MANIFEST_NAME for damage in report.damages):
        if output is not None:  # only the index goes elsewhere; files beside the shards stay unchanged
            save_index(old, where, store=to)
            return old, list(report.damages)
        write_manifest(old, dataset.source.root, store=dataset.store)
        return old, []
    extent_bytes = None if old is None else int(old.metadata.get("extent_bytes", EXTENT_BYTES))
    shards = dataset.source
    repaired = build_index(shards, store=dataset.store, format=dataset.format, extent_bytes=extent_bytes)
    check = ShardCheck(repaired, shards.paths, store=dataset.store, format=dataset.format)
    opened = Opened(dataset.store, repaired, shards.paths, dataset.format, path, check)
    if damages := check_shards(opened, progress=progress).damages:
        return repaired, damages
    if old is None or old.extent_checksum is not None:
        checksums = extent_checksums(repaired, shards.paths, store=dataset.store, check=check.check, progress=progress)
        repaired = replace(repaired, extent_checksum=checksums)
    as_written = all(damage.kind != "changed" for damage in report.damages)
    repaired = _with_known_columns(repaired, old, shards.paths, dataset.store, as_written=as_written)
    if (
        RECORD_CRCS in lost_columns
        and (crcs := record_checksums(repaired, shards.paths, store=dataset.store)) is not None
    ):
        repaired = replace(repaired, columns={RECORD_CRCS: crcs})
    save_index(repaired, where, store=to)
    if old is not None and has_manifest(old) and output is None:
        write_manifest(repaired, dataset.source.root, store=dataset.store)
    return repaired, []


def _refuse_part(old: Index, path: str, store: Store) -> None:
    """Raise `UsageError` if the new index would lack shards of the old index."""
    num_shards = decode(store.map(path)).num_shards
    if num_shards != old.num_shards:
        msg = f"{path}: the index was left as it is: it has {num_shards} shards, but {old.num_shards} were named"
        raise UsageError(msg, hint=f"verify all: `shoal verify {path} --repair-index`; output= writes elsewhere")


def _columns_of(path: str, store: Store) -> set[str]:
    """Return the names of the readable columns of a damaged index."""
    try:
        return set(decode(store.map(path)).columns)
    except IndexFileError:
        return set()


def _with_known_columns(
    repaired: Index, old: Index | None, paths: Sequence[str], store: Store, *, as_written: bool
) -> Index:
    """Return the new index with columns and metadata of the old index that still describe the shards."""
    if old is None:
        return repaired
    metadata = {name: value for name, value in old.metadata.items() if name not in _SHARD_METADATA}
    known = set(_samples_of_shards(old))
    now = _samples_of_shards(repaired)
    if _samples_of_shards(old) == now:
        kept = old.metadata if as_written else metadata
        return replace(repaired, columns=old.columns, metadata={**kept, **repaired.metadata})
    if own := [name for name in old.columns if name != RECORD_CRCS]:
        new = [name for name, samples in zip(repaired.shard_names, now, strict=True) if samples not in known]
        msg = f"the index was left as it is: it has the columns {', '.join(own)}, and their values for the new samples "
        msg += f"of {counted(len(new), 'shard')}, the first of {new[0]}, are unknown"
        hint = "`shoal index --columns` reads columns from samples; `shoal index --output FILE` writes none"
        raise UsageError(msg, hint=hint)
    columns = {}
    if RECORD_CRCS in old.columns and (crcs := record_checksums(repaired, paths, store=store)) is not None:
        columns[RECORD_CRCS] = crcs
    return replace(repaired, columns=columns, metadata={**metadata, **repaired.metadata})


def _samples_of_shards(index: Index) -> list[tuple[str | bytes, ...]]:
    """Return the name and the sample layout of each shard, for comparison."""
    rows = [rows_of(index, shard) for shard in range(index.num_shards)]
    return [
        (name, *(column.tobytes() for column in (row.first_byte, row.end_byte, row.num_samples, row.layout_crc)))
        for name, row in zip(index.shard_names, rows, strict=True)
    ]
