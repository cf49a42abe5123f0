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

_SHARD_METADATA = ("digests", "plan", "marks", FRAMES)  # metadata of a packing that describes exactly its shards


def repair_index(
    asked: Verification,
    found: VerifyReport,
    *,
    output: tuple[str, Store] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Index, list[Damage]]:
    """Rewrite an index if only the index is wrong; returns it, with any damages that kept it from being written.

    It is written to ``output``, a path and its store, or over the old one. Samples of the old index stay unchanged. The
    shards are read completely once more, and nothing is written unless all of their samples can be parsed. Checksums of
    samples are recomputed; other columns are kept if no sample is new.

    Raises `UsageError` if shards are damaged, the index has columns whose values for new samples are unknown, or it is
    not a writable file; and `ShoalError` if `build_index` fails, or the index cannot be written.
    """
    path, index_store = asked.index_path, asked.index_store
    if path is None or index_store is None:
        msg = "there is no index file beside these shards that could be written"
        raise UsageError(msg, hint="`shoal index` makes one")
    if output is None and scheme_of(path) in ("http", "https"):
        msg = f"{path}: the index cannot be written here: nothing is written over http"
        raise UsageError(msg, hint="output= writes it elsewhere: put it beside the shards, or open with index=")
    where, to = (path, index_store) if output is None else output
    if lost := [damage for damage in found.damages if not damage.is_of_index]:
        msg = f"the index was left as it is: shards are damaged too, first {lost[0].shard}"
        raise UsageError(msg, hint="restore the shards; or run `shoal index`, which takes shards as they are")
    old = None if asked.opened is None else asked.opened.index
    if old is not None and output is None:
        _refuse_part(old, path, index_store)
    lost_columns = _columns_of(path, index_store) if old is None else set()
    if own := sorted(lost_columns - {RECORD_CRCS}):
        what = f"the index was left as it is: it has the columns {', '.join(own)}"
        msg = f"{what}, and it is unknown which of their values are right"
        raise UsageError(msg, hint="restore the file; `shoal index` makes an index without them")
    if old is not None and not found.damages:
        infos = stat_all(asked.opened.paths if asked.opened is not None else (), asked.store)
        repaired = replace(old, shard_versions=tuple(info.version for info in infos))
        save_index(repaired, where, store=to)
        return repaired, []
    if old is not None and all(damage.shard == MANIFEST_NAME for damage in found.damages):
        if output is not None:  # only the index goes elsewhere; what lies beside the shards stays as it is
            save_index(old, where, store=to)
            return old, list(found.damages)
        write_manifest(old, asked.found.root, store=asked.store)
        return old, []
    extent_bytes = None if old is None else int(old.metadata.get("extent_bytes", EXTENT_BYTES))
    shards = asked.found
    repaired = build_index(shards, store=asked.store, format=asked.format, extent_bytes=extent_bytes)
    check = ShardCheck(repaired, shards.paths, store=asked.store, format=asked.format)
    opened = Opened(asked.store, repaired, shards.paths, asked.format, path, check)
    if damages := check_shards(opened, progress=progress).damages:
        return repaired, damages
    if old is None or old.extent_checksum is not None:
        checksums = extent_checksums(repaired, shards.paths, store=asked.store, check=check.check, progress=progress)
        repaired = replace(repaired, extent_checksum=checksums)
    as_written = all(damage.kind != "changed" for damage in found.damages)
    repaired = _with_known_columns(repaired, old, shards.paths, asked.store, as_written=as_written)
    if (
        RECORD_CRCS in lost_columns
        and (crcs := record_checksums(repaired, shards.paths, store=asked.store)) is not None
    ):
        repaired = replace(repaired, columns={RECORD_CRCS: crcs})
    save_index(repaired, where, store=to)
    if old is not None and has_manifest(old) and output is None:
        write_manifest(repaired, asked.found.root, store=asked.store)
    return repaired, []


def _refuse_part(old: Index, path: str, store: Store) -> None:
    """Raise `UsageError` if an index would be replaced by one of only some of its shards."""
    num_shards = decode(store.map(path)).num_shards
    if num_shards != old.num_shards:
        msg = f"{path}: the index was left as it is: it has {num_shards} shards, and {old.num_shards} were named"
        raise UsageError(msg, hint=f"verify all: `shoal verify {path} --repair-index`; output= writes elsewhere")


def _columns_of(path: str, store: Store) -> set[str]:
    """Return the names of the columns of a damaged index, as far as it can still be read."""
    try:
        return set(decode(store.map(path)).columns)
    except IndexFileError:
        return set()


def _with_known_columns(
    repaired: Index, old: Index | None, paths: Sequence[str], store: Store, *, as_written: bool
) -> Index:
    """Return the new index with those columns and metadata of the old one that are still true of the shards."""
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
        what = f"the index was left as it is: it has the columns {', '.join(own)}"
        which = f"{counted(len(new), 'shard')}, the first of {new[0]}"
        msg = f"{what}, and their values for the new samples of {which} are unknown"
        hint = "`shoal index --columns` reads those that samples have; `shoal index --output FILE` makes one without"
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
