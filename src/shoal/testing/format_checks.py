"""Checks of the requirements on any shard format, built-in or third-party, on shards of known samples."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from shoal.errors import ShardError
from shoal.formats.shard_format import ColumnRecords, Format, Records, Sample, Span, as_format
from shoal.formats.tables.arrow_values import value_in
from shoal.index.shard_scan import ShardScan
from shoal.testing.format_damage import DamageCount, check_damage
from shoal.testing.known_shards import KnownShard, measured, require, require_same, same

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class FormatReport:
    r"""The extent of a check: numbers of shards, samples, spans of pieces, and damaged shards.

    Examples
    --------
    >>> shards = {"a.txt": (b"one\ntwo\n", [{"text": "one"}, {"text": "two"}])}
    >>> shoal.testing.check_format(shoal.formats.Text(), shards, num_damaged=6)
    FormatReport(num_shards=1, num_samples=2, num_spans=3, damage=DamageCount(num_tried=6, num_refused=3))
    """

    num_shards: int
    num_samples: int
    num_spans: int
    damage: DamageCount


def check_format(
    format: Format,  # noqa: A002  # the word of the public interface
    shards: Mapping[str, tuple[bytes, Sequence[Sample]]],
    *,
    same_as: Iterable[Format] = (),
    detects_damage: bool = False,
    num_damaged: int = 120,
    memory_limit_bytes: int = 64 * _MIB,
) -> FormatReport:
    r"""Check that a format finds the samples of each shard, returns them, and refuses damaged samples.

    ``shards`` maps the name of a shard to its bytes and its samples. Pass several: without samples, with a single huge
    sample, with the rare features of your format. ``same_as`` are formats that must give equal results on shards up to
    1 MiB, for instance the format itself with a tiny window. ``detects_damage`` means that the format has checksums of
    all its bytes, so that a flipped bit may never give a wrong sample. Every scan may take ``memory_limit_bytes``
    beyond four times the shard's size in memory.

    The check covers the arrays and head of a scan; the samples and CRCs of all spans of pieces, with and without
    ``sample_starts``, in any kind of buffer; that samples own their bytes; that samples read alone, views and columns
    are equal; that wrong counts, cut shards and flipped bits give the right samples or a `ShardError` with the shard
    and a byte inside it.

    Raises
    ------
    AssertionError
        The format fails a check; the message names the check and the shard.

    Examples
    --------
    >>> shards = {"a.txt": (b"one\ntwo\n", [{"text": "one"}, {"text": "two"}])}
    >>> shoal.testing.check_format(shoal.formats.Text(), shards, num_damaged=6).num_spans
    3
    """
    format, others = as_format(format), tuple(map(as_format, same_as))  # noqa: A001
    counts = [
        _check_shard(format, KnownShard(name, data, samples), memory_limit_bytes, others)
        for name, (data, samples) in shards.items()
    ]
    damage = DamageCount()
    for name, (data, samples) in shards.items():
        known = KnownShard(name, data, samples)
        damage += check_damage(
            format, known, count=num_damaged, detects_damage=detects_damage, memory_limit_bytes=memory_limit_bytes
        )
    num_samples = sum(len(samples) for _, samples in shards.values())
    return FormatReport(len(shards), num_samples, sum(counts), damage)


def _check_shard(format: Format, known: KnownShard, memory_limit_bytes: int, same_as: tuple[Format, ...]) -> int:  # noqa: A002
    known = replace(known, format_name=format.name)
    scan, used_bytes = measured(lambda: known.scan(format))
    _check_scan(known, scan)
    decoded_bytes = 0 if scan.piece_decoded_bytes is None else int(scan.piece_decoded_bytes.sum())
    allowed = memory_limit_bytes + 4 * (len(known.data) + decoded_bytes)
    require(used_bytes <= allowed, known, f"a scan took {used_bytes} bytes of memory, but {allowed} are allowed")
    copies = (pickle.loads(pickle.dumps(format)), copy.deepcopy(format))  # noqa: S301  # processes get such copies
    for other in (format, *copies, *(same_as if len(known.data) <= _MIB else ())):
        _check_same_scan(known, scan, known.scan(other))
    # The index stores heads as JSON, and returns JSON types.
    scan = replace(scan, head=json.loads(json.dumps(dict(scan.head))), notes={}, piece_decoded_bytes=None)
    spans = _spans(len(scan.sample_starts) - 1)
    for first, end in spans:
        _check_span(format, known, scan, first, end)
    _check_wrong_count(format, known, scan)
    _check_single_samples(format, known, scan)
    return len(spans)


def _check_scan(known: KnownShard, scan: ShardScan) -> None:
    starts, crcs, pieces = scan.sample_starts, scan.layout_crcs, scan.piece_samples
    num_pieces = len(starts) - 1
    fine = starts.dtype == np.int64 and starts.ndim == 1 and num_pieces >= 0
    require(fine, known, "sample_starts are int64, (n + 1,)")
    require(crcs.dtype == np.uint32 and crcs.shape == (num_pieces,), known, "layout_crcs are uint32, one a piece")
    require(bool((np.diff(starts) > 0).all()), known, "sample_starts ascend, so that no sample is without bytes")
    inside = num_pieces == 0 or (starts[0] >= 0 and starts[-1] <= len(known.data))
    require(bool(inside), known, f"samples lie in bytes [{starts[0]}, {starts[-1]}), the shard has {len(known.data)}")
    if pieces is not None:
        fine = pieces.shape == (num_pieces,) and bool((pieces > 0).all())
        require(fine, known, "piece_samples are positive, one a piece")
    if scan.piece_decoded_bytes is not None:
        fine = scan.piece_decoded_bytes.shape == (num_pieces,) and bool((scan.piece_decoded_bytes >= 0).all())
        require(fine, known, "piece_decoded_bytes has one value a piece, none negative")
    _check_ends(known, scan)
    num_samples, expected = scan.num_samples, len(known.samples)
    require(num_samples == expected, known, f"a scan finds {num_samples} samples instead of {expected}")
    head = dict(scan.head)
    try:
        again = json.loads(json.dumps(head, allow_nan=False))
    except (TypeError, ValueError) as error:
        require(False, known, f"the head of a scan is not JSON: {error}")
    require(same(again, head), known, f"the head of a scan is {head!r:.200}, but {again!r:.200} after JSON")
    counts = {(type(name), type(count)) for name, count in scan.notes.items()} <= {(str, int)}
    require(counts, known, "notes are counts by name")


def _check_ends(known: KnownShard, scan: ShardScan) -> None:
    starts, ends = scan.sample_starts, scan.piece_ends
    if ends is None:
        return
    require(scan.piece_samples is not None, known, "only pieces have piece_ends")
    require(ends.dtype == np.int64 and ends.shape == (len(starts) - 1,), known, "piece_ends are int64, one a piece")
    require(bool((ends >= starts[1:]).all()), known, "no piece ends before the next one begins")
    ascend = bool((np.diff(ends) > 0).all()) and (not len(ends) or ends[-1] == starts[-1])
    require(ascend, known, "piece_ends ascend to the last start")
    require(bool((ends[:-2] <= starts[2:-1]).all()), known, "no piece has bytes of the next but one")


def _check_same_scan(known: KnownShard, one: ShardScan, other: ShardScan) -> None:
    for name in ("sample_starts", "layout_crcs", "piece_samples", "piece_decoded_bytes", "piece_ends", "head", "notes"):
        a, b = getattr(one, name), getattr(other, name)
        a, b = (dict(a), dict(b)) if isinstance(a, Mapping) else (a, b)
        require(same(a, b), known, f"{name} of two scans differ: {a!r:.200} and {b!r:.200}")


def _check_span(format: Format, known: KnownShard, scan: ShardScan, first: int, end: int) -> None:  # noqa: A002
    """Parse some consecutive pieces in every way, and compare with the scan and the samples."""
    begin, stop = int(scan.sample_starts[first]), int(scan.ends[end - 1])
    whole = known.data[begin:stop]
    before = scan.samples_before()
    expected = known.samples[int(before[first]) : int(before[end])]
    pieces = f"pieces [{first}, {end}) at bytes [{begin}, {stop})"
    starts = None if scan.piece_samples is not None else (scan.sample_starts[first : end + 1] - begin).tolist()
    options: list[list[int] | None] = [None] if starts is None else [starts, None]
    for sample_starts in options:
        span = Span(known.name, begin, len(expected), sample_starts, scan.head)
        for buffer in (whole, memoryview(whole), bytearray(whole)):
            label = f"{pieces}, {'with' if sample_starts else 'without'} starts, in {type(buffer).__name__}"
            records = format.parse(buffer, span)
            _check_records(records, known, expected, scan.layout_crcs[first:end].tolist(), label)
            samples = [records.sample(number) for number in range(len(expected))]
            if isinstance(buffer, bytearray):
                buffer[:] = b"\xaa" * len(buffer)
            fine = all(map(same, samples, expected))
            require(fine, known, f"{label}: a sample does not own its bytes, they change with the buffer")
        if format.has_views:
            views = format.parse_views(whole, memoryview(whole), span)
            fine = all(_as_bytes(views.sample(number)) == expected[number] for number in range(len(expected)))
            require(fine, known, f"{pieces}: samples of views differ from samples of copies")


def _check_records(
    records: Records, known: KnownShard, expected: Sequence[Sample], crcs: list[int], label: str
) -> None:
    require(len(records) == len(expected), known, f"{label}: {len(records)} samples instead of {len(expected)}")
    own_crcs = records.layout_crcs().tolist()
    require(own_crcs == crcs, known, f"{label}: the layout CRCs are {own_crcs[:5]}, but the scan has {crcs[:5]}")
    for number in reversed(range(len(expected))):
        sample = records.sample(number)
        require_same(sample, expected[number], known, f"{label}: sample {number}")
    columns = records.columns() if isinstance(records, ColumnRecords) else None
    if columns is None:
        return
    for number in range(len(expected)):
        pairs = zip(columns.kinds, columns.arrays, strict=True)
        row = {name: value_in(kind, array, number) for (name, kind), array in pairs}
        require_same(row, expected[number], known, f"{label}: row {number} of its columns")


def _check_wrong_count(format: Format, known: KnownShard, scan: ShardScan) -> None:  # noqa: A002
    """Request a sample more than there are, and a sample fewer, like an index of another shard."""
    if not known.samples:
        return
    begin, stop = int(scan.sample_starts[0]), int(scan.sample_starts[-1])
    for wrong in {len(known.samples) + 1, len(known.samples) - 1} - {0}:
        try:
            records = format.parse(known.data[begin:stop], Span(known.name, begin, wrong, None, scan.head))
            for number in range(wrong):
                records.sample(number)
        except ShardError:
            continue
        except Exception as error:
            words = f"parse() of {wrong} samples instead of {len(known.samples)} raises {error!r}"
            raise AssertionError(f"{format.name}, shard {known.name!r}: {words}") from error
        require(False, known, f"parse() returns {wrong} samples instead of {len(known.samples)}")


def _check_single_samples(format: Format, known: KnownShard, scan: ShardScan) -> None:  # noqa: A002
    before = scan.samples_before().tolist()
    for piece in range(len(scan.sample_starts) - 1):
        if before[piece + 1] - before[piece] != 1:
            continue
        begin, end = int(scan.sample_starts[piece]), int(scan.ends[piece])
        sample = format.read_sample(known.read, end, Span(known.name, begin, 1, None, scan.head))
        require_same(sample, known.samples[before[piece]], known, f"read alone, sample {before[piece]}")


def _spans(num_pieces: int) -> list[tuple[int, int]]:
    """Return all spans of a few pieces; for many pieces, spans between borders at both ends and in the middle."""
    middle = num_pieces // 2
    borders = (0, 1, middle, middle + 1, num_pieces - 1, num_pieces)
    return list(combinations(borders if num_pieces > 6 else range(num_pieces + 1), 2))


def _as_bytes(sample: Sample) -> Sample:
    return {name: bytes(value) if isinstance(value, memoryview) else value for name, value in sample.items()}
