"""Check of shards against their index that finds every damage of a dataset, not only the first.

Each shard is stat'ed, scanned by its format, and read completely: extents with a checksum in the index are compared
with it, other extents are parsed sample by sample. Several shards, and several spans of a shard, are checked at the
same time. On request, the fields of each sample are decoded as well.
"""

from __future__ import annotations

import os
import zlib
from collections import deque
from collections.abc import Callable, Container, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from shoal.errors import IndexFileError, ShardError, StorageError
from shoal.formats.metadata.scanning import scan_again
from shoal.index.shard_scan import ShardScan, has_foreign_borders
from shoal.index.table import Index, own_bytes
from shoal.indexing.changed_shards import first_difference, looks_indexed, rows_of
from shoal.indexing.manifests_beside import needed_beside
from shoal.indexing.opened_dataset import Opened
from shoal.indexing.scan.costs import ReadCosts
from shoal.indexing.scan.remote_scans import reading_one
from shoal.pipeline.stages.decode import Decode
from shoal.pipeline.stages.running import FieldError
from shoal.reading.checks.checked_reads import parse_unit
from shoal.reading.checks.damaged_samples import Damaged, SalvagedRecords
from shoal.reading.checks.record_checksums import FRAMES, wrong_records
from shoal.reading.schedule.units import UnitRead, extent_read, starts_in
from shoal.storage.stat_many import find_all
from shoal.storage.storage_errors import is_broken, is_missing
from shoal.storage.store_protocol import ObjectInfo
from shoal.verify.verify_report import Damage, VerifyReport, words_of

_READ_BYTES = 4 << 20  # a span of extents read at once; a larger extent is read alone
_MOST_THREADS = 8
_REMOTE_THREADS = 16  # remote: threads wait for responses, not for the processor


def check_shards(
    opened: Opened, *, progress: Callable[[int, int], None] | None = None, decode: Decode | None = None
) -> VerifyReport:
    """Read all shards of a dataset once, and list every difference from the index.

    ``decode`` decodes the fields of each sample; failures are listed, too. ``progress`` is called in this thread with
    bytes done and total bytes. Memory: at most 24 reads of 4 MiB, 48 for remote shards, plus the samples of one shard
    for each thread during scans. Raises `StorageError` if existing bytes could not be read, for a reason that may not
    be damage.
    """
    index, store = opened.index, opened.store
    infos = find_all(opened.paths, store, but=lambda error: is_missing(error) or is_broken(error))
    total_bytes = int(own_bytes(index).sum())
    num_threads = min(_MOST_THREADS, os.cpu_count() or 1) if store.reads_ahead else _REMOTE_THREADS
    report = VerifyReport()
    costs = ReadCosts()
    first_extent = index.shard_first_extent.tolist()
    under_way: deque[Future[VerifyReport]] = deque()

    def finish_oldest() -> None:
        report.include(under_way.popleft().result())
        if progress is not None:
            progress(min(report.num_bytes, total_bytes), total_bytes)

    with ThreadPoolExecutor(num_threads, thread_name_prefix="shoal-verify") as threads:
        try:
            for shard, info in enumerate(infos):
                for work in _works(opened, shard, info, costs, first_extent[shard : shard + 2], decode):
                    under_way.append(threads.submit(work))
                    if len(under_way) >= 3 * num_threads:
                        finish_oldest()
            while under_way:
                finish_oldest()
        finally:
            for answer in under_way:
                answer.cancel()
    report.damages = _without_repeats(report.damages, index)
    return report


def _works(
    opened: Opened, shard: int, info: ObjectInfo | None, costs: ReadCosts, extents: list[int], decode: Decode | None
) -> Iterator[Callable[[], VerifyReport]]:
    """Yield the checks of one shard, whose extents are ``[extents[0], extents[1])``."""
    if info is None:
        yield lambda: _missing(opened, shard)
        return
    yield lambda: _or_broken(opened, shard, lambda: _scanned(opened, shard, info, costs))
    yield lambda: _or_broken(opened, shard, lambda: _framed(opened, shard, info))
    for span in _spans(opened, shard, *extents):
        yield lambda span=span: _read_or_lost(opened, span, info, decode)  # type: ignore[misc]  # bind now, not later


def _missing(opened: Opened, shard: int) -> VerifyReport:
    """Report a shard that is missing, or is not a file."""
    index = opened.index
    first, end = index.extent_first_sample[index.shard_first_extent[shard : shard + 2]].tolist()
    why = "there is no such shard"
    try:
        opened.store.stat(opened.paths[shard])
    except StorageError as error:
        if is_broken(error):
            why = words_of(error, opened.paths[shard])
    what = f"{why}; it had {end - first} samples in {int(index.shard_bytes[shard])} bytes"
    samples = tuple(range(first, end))
    return VerifyReport(
        [Damage("missing", index.shard_names[shard], None, None, what, samples, (None,) * len(samples))]
    )


def _or_broken(opened: Opened, shard: int, check: Callable[[], VerifyReport]) -> VerifyReport:
    """Run a check; if the disk cannot read the shard, report the failure instead."""
    try:
        return check()
    except StorageError as error:
        if not is_broken(error):
            raise
        what = words_of(error, opened.paths[shard])
        return VerifyReport([Damage("unreadable", opened.index.shard_names[shard], None, None, what)])


def _read_or_lost(opened: Opened, span: UnitRead, info: ObjectInfo, decode: Decode | None) -> VerifyReport:
    """Check a span; if the disk cannot read it, check it extent by extent."""
    try:
        return _read(opened, span, info, decode)
    except StorageError as error:
        if not is_broken(error):
            raise
        broken = error
    end_extent = _end_extent(opened.index, span)
    if end_extent == span.unit + 1:
        what = words_of(broken, opened.paths[span.shard])
        lost = _lost(span, "unreadable", opened.index.shard_names[span.shard], what)
        return VerifyReport([lost], num_bytes=_new_bytes(opened.index, span))
    report = VerifyReport()
    for extent in range(span.unit, end_extent):
        report.include(_read_or_lost(opened, extent_read(opened.index, extent), info, decode))
    return report


def _scanned(opened: Opened, shard: int, info: ObjectInfo, costs: ReadCosts) -> VerifyReport:
    """Scan a shard with its format and compare the result with the index."""
    index, name = opened.index, opened.index.shard_names[shard]
    try:
        with reading_one(opened.store, info.path, info.num_bytes, costs=costs) as read:
            beside, head = needed_beside(info.path, opened.format, opened.store), index.shard_heads.get(shard, {})
            scan = scan_again(opened.format, read, info.num_bytes, shard=name, head=head, **beside)
    except ShardError as error:
        return VerifyReport([Damage("unreadable", name, error.byte, None, words_of(error))])
    difference = first_difference(rows_of(index, shard), index.shard_heads.get(shard, {}), scan)
    if difference is None:
        return VerifyReport(num_touched=int(not looks_indexed(index, shard, info)))
    byte, what = difference
    # An untouched shard is right, and the records of another tool about it are wrong.
    is_untouched = index.shard_versions[shard] != "" and looks_indexed(index, shard, info)
    is_index_wrong = is_untouched and has_foreign_borders(index.shard_heads.get(shard, {}))
    kind = "changed" if is_index_wrong or _has_grown(opened, shard, info, scan) else "unreadable"
    return VerifyReport([Damage(kind, name, byte, None, what)])


def _framed(opened: Opened, shard: int, info: ObjectInfo) -> VerifyReport:
    """Check the bytes around the samples, which a scan need not read: end of archive, footer, magic numbers."""
    index, name = opened.index, opened.index.shard_names[shard]
    known = index.metadata.get(FRAMES, {}).get(name)
    extents = slice(*index.shard_first_extent[shard : shard + 2].tolist())
    ends = index.extent_end_byte[extents]
    if known is None or not len(ends) or info.num_bytes < int(ends[-1]):
        return VerifyReport()
    begin, end, num_bytes = int(index.extent_first_byte[extents][0]), int(ends[-1]), int(index.shard_bytes[shard])
    if info.num_bytes != num_bytes:
        what = f"the shard has {info.num_bytes} bytes, but had {num_bytes} when it was written"
        return VerifyReport([Damage("checksum", name, min(info.num_bytes, num_bytes), None, what)])
    path, crc = opened.paths[shard], 0
    for first, after in ((0, begin), (end, num_bytes)):
        if after > first:
            crc = zlib.crc32(opened.store.read_range(path, first, after), crc)
    if crc == known:
        return VerifyReport()
    what = f"bytes before the samples (up to {begin}) or after them (from {end} on) differ from the written bytes"
    return VerifyReport([Damage("checksum", name, 0 if begin else end, None, what)])


def _has_grown(opened: Opened, shard: int, info: ObjectInfo, scan: ShardScan) -> bool:
    """Return True if a readable shard was rewritten with more bytes and no fewer samples.

    A shard of the same size was damaged in place, and a shard with fewer bytes or samples may have been cut: then it is
    unknown whether the shard or the index is right.
    """
    index = opened.index
    first, end = index.extent_first_sample[index.shard_first_extent[shard : shard + 2]].tolist()
    return info.num_bytes > int(index.shard_bytes[shard]) and scan.num_samples >= end - first


def _spans(opened: Opened, shard: int, first: int, end: int) -> Iterator[UnitRead]:
    """Yield spans of consecutive extents, each for one read."""
    index = opened.index
    ends = index.extent_end_byte[first:end]
    at = first
    while at < end:
        begin = int(index.extent_first_byte[at])
        after = max(at + 1, first + int(np.searchsorted(ends, begin + _READ_BYTES, side="right")))
        samples = index.extent_first_sample[[at, after]].tolist()
        yield UnitRead(at, shard, begin, int(ends[after - 1 - first]), samples[0], samples[1] - samples[0])
        at = after


def _read(opened: Opened, span: UnitRead, info: ObjectInfo, decode: Decode | None) -> VerifyReport:
    """Check the extents of a span, each by its checksum or sample by sample; and decode sound samples."""
    index, name = opened.index, opened.index.shard_names[span.shard]
    report = VerifyReport(num_bytes=_new_bytes(index, span))
    end_byte = min(span.end_byte, info.num_bytes)
    data = b""
    if end_byte > span.first_byte:
        data = opened.store.read_range(opened.paths[span.shard], span.first_byte, end_byte)
    for extent in range(span.unit, _end_extent(index, span)):
        read = extent_read(opened.index, extent)
        if read.end_byte > info.num_bytes:
            report.damages.append(_lost(read, "cut", name, f"the shard ends at byte {info.num_bytes}"))
            continue
        begin = read.first_byte - span.first_byte
        part = data[begin : begin + read.num_bytes]
        num_before = len(report.damages)
        try:
            if index.extent_checksum is None:
                report.num_by_parsing += 1
                report.damages += _by_parsing(opened, read, part)
            else:
                report.num_by_checksum += 1
                if zlib.crc32(part) != int(index.extent_checksum[extent]):
                    report.damages.append(_by_checksum(opened, read, part))
        except IndexFileError as error:  # wrong borders of samples in the index
            report.damages.append(_lost(read, "unreadable", name, words_of(error)))
            continue
        if decode is not None:
            lost = {sample for damage in report.damages[num_before:] for sample in damage.samples}
            report.include(_decoded(opened, read, part, lost, decode))
    return report


def _decoded(opened: Opened, read: UnitRead, data: bytes, lost: Container[int], decode: Decode) -> VerifyReport:
    """Decode each field of an extent's samples, except ``lost`` samples; raise errors without a cause in the data."""
    report = VerifyReport()
    records, starts = _records(opened, read, data), starts_in(opened.index, read)
    for number in range(read.num_samples):
        sample_id = read.first_sample + number
        sample = None if sample_id in lost else _sample(records, number)
        if not isinstance(sample, dict):
            continue
        report.num_decoded += 1
        if words := [text for name, value in sample.items() if (text := _failure(decode, name, value))]:
            span = (read.first_byte, read.end_byte)
            if starts is not None:
                span = (read.first_byte + starts[number], read.first_byte + starts[number + 1])
            shard, what = opened.index.shard_names[read.shard], "; ".join(words)
            report.damages.append(Damage("undecodable", shard, *span, what, (sample_id,), (_key_of(sample),)))
    return report


def _failure(decode: Decode, name: str, value: Any) -> str:
    """Return why a field does not decode; "" if it does."""
    try:
        decode({name: value}, 0)
    except FieldError as bad:
        cause = bad.__cause__
        return f"{bad} cannot be decoded: {type(cause).__name__}: {cause}"
    return ""


def _end_extent(index: Index, span: UnitRead) -> int:
    return int(np.searchsorted(index.extent_first_sample, span.first_sample + span.num_samples))


def _lost(read: UnitRead, kind: str, shard: str, what: str) -> Damage:
    """Return the damage of a whole extent."""
    samples = tuple(range(read.first_sample, read.first_sample + read.num_samples))
    return Damage(kind, shard, read.first_byte, read.end_byte, what, samples, (None,) * read.num_samples)


def _new_bytes(index: Index, span: UnitRead) -> int:
    """Return the number of bytes of a span that the previous span does not cover."""
    before = span.unit - 1
    is_first = before < 0 or int(index.extent_shard[before]) != span.shard
    return span.num_bytes if is_first else span.end_byte - int(index.extent_end_byte[before])


def _by_checksum(opened: Opened, read: UnitRead, data: bytes) -> Damage:
    """Report an extent with a wrong checksum: the wrong samples if samples have checksums, otherwise all."""
    index = opened.index
    numbers = list(range(read.num_samples))
    first_byte, end_byte = read.first_byte, read.end_byte
    if (wrong := wrong_records(index, read, data)) and (starts := starts_in(index, read)) is not None:
        numbers = wrong
        first_byte, end_byte = read.first_byte + starts[wrong[0]], read.first_byte + starts[wrong[-1] + 1]
    records = _records(opened, read, data)
    what = "the bytes differ from the indexed bytes, by their checksum"
    keys = tuple(_key_of(_sample(records, number)) for number in numbers)
    samples = tuple(read.first_sample + number for number in numbers)
    return Damage("checksum", index.shard_names[read.shard], first_byte, end_byte, what, samples, keys)


def _by_parsing(opened: Opened, read: UnitRead, data: bytes) -> list[Damage]:
    """Report the samples of an extent that cannot be parsed, or all of them if their layout differs."""
    index, name = opened.index, opened.index.shard_names[read.shard]
    records, starts = _records(opened, read, data), starts_in(index, read)
    values = [_sample(records, number) for number in range(read.num_samples)]
    damages = []
    for number, value in enumerate(values):
        if isinstance(value, Damaged):
            first_byte = value.error.byte if isinstance(value.error, ShardError) else None
            end_byte = None if starts is None else read.first_byte + starts[number + 1]
            samples = (read.first_sample + number,)
            damages.append(Damage("unreadable", name, first_byte, end_byte, words_of(value.error), samples, (None,)))
    if damages:
        return damages
    if has_foreign_borders(index.shard_heads.get(read.shard, {})):
        return []  # parsing has compared the borders; the index never read the headers
    layout = zlib.crc32(parse_unit(opened, read, data).layout_crcs().astype("<u4").tobytes())
    if layout == int(index.extent_layout_crc[read.unit]):
        return []
    what = "samples can be read, but their layout differs from the index"
    all_ids = tuple(range(read.first_sample, read.first_sample + read.num_samples))
    keys = tuple(_key_of(value) for value in values)
    return [Damage("checksum", name, read.first_byte, read.end_byte, what, all_ids, keys)]


def _records(opened: Opened, read: UnitRead, data: bytes) -> SalvagedRecords:
    records = SalvagedRecords(opened, read)
    records.add(read, data)
    return records


def _sample(records: SalvagedRecords, number: int) -> Any:
    try:
        return records.sample(number)
    except ShardError as error:  # about the shard as a whole, which its scan reports
        return Damaged(error)


def _key_of(sample: Any) -> str | None:
    key = sample.get("__key__") if isinstance(sample, dict) else None
    return key if isinstance(key, str) else None


def _without_repeats(damages: list[Damage], index: Index) -> list[Damage]:
    """Sort damages by shard and byte, and drop damages of scans that extents of the shard report more precisely."""
    numbers = {name: number for number, name in enumerate(index.shard_names)}
    anew = {damage.shard for damage in damages if damage.kind == "changed"}
    first_lost: dict[str, int] = {}
    framed = {id(damage) for damage in damages if damage.kind == "checksum" and not damage.samples}
    otherwise = {damage.shard for damage in damages if id(damage) not in framed}
    for damage in damages:
        if damage.samples:
            extent = int(np.searchsorted(index.extent_first_sample, damage.samples[0], side="right")) - 1
            first_byte = int(index.extent_first_byte[extent])
            first_lost[damage.shard] = min(first_lost.get(damage.shard, first_byte), first_byte)
    kept = []
    for damage in damages:
        if damage.shard in anew:
            # A rewritten shard has other bytes; only the rewrite is reported.
            is_repeat = damage.kind != "changed"
        elif id(damage) in framed:
            is_repeat = damage.shard in otherwise
        else:
            # A scan stops at the first unreadable bytes, and its later counts are wrong.
            is_repeat = not damage.samples and (damage.first_byte or 0) >= first_lost.get(damage.shard, 1 << 62)
        kept += [] if is_repeat else [damage]
    return sorted(kept, key=lambda damage: (numbers[damage.shard], damage.first_byte or 0))
