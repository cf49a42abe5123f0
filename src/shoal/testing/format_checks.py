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
from shoal.testing.known_shards import KnownShard, measured, require, same

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class FormatReport:
    """Counts of what a check covered: shards, samples, spans of pieces, and damaged shards."""

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
    """Check that a format finds the samples of each shard, returns them, and refuses damaged ones.

    ``shards`` maps the name of a shard to its bytes and the samples in it. Pass several: one without samples, one with
    a single huge sample, one with the rare features of your format. ``same_as`` are formats that must give equal
    results on shards up to 1 MiB, for instance the format itself with a tiny window. ``detects_damage`` says that the
    format has checksums of all its bytes, so that no flipped bit may ever lead to a wrong sample. Scans, including
    those of damaged shards, may take ``memory_limit_bytes`` beyond four times the shard's size in memory.

    Checks the arrays and head of a scan; that any span of pieces gives the samples and CRCs of the scan, with and
    without ``sample_starts``, in any kind of buffer; that samples own their bytes; that a sample read alone, views and
    columns are equal; that wrong counts, cut shards and flipped bits lead only to the right samples or to a
    `ShardError` that names the shard and a byte inside it.

    Raises
    ------
    AssertionError
        The format fails one of these; the message says which, and for which shard.
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
    found, used_bytes = measured(lambda: known.scan(format))
    _check_scan(known, found)
    allowed = memory_limit_bytes + 4 * _in_memory(known, found)
    require(used_bytes <= allowed, known, f"a scan took {used_bytes} bytes of memory, and {allowed} are allowed")
    copies = (pickle.loads(pickle.dumps(format)), copy.deepcopy(format))  # noqa: S301  # our own object, to processes
    for other in (format, *copies, *(same_as if len(known.data) <= _MIB else ())):
        _check_same_scan(known, found, known.scan(other))
    # The index stores heads as JSON, so they come back as such.
    found = replace(found, head=json.loads(json.dumps(dict(found.head))), notes={}, piece_decoded_bytes=None)
    spans = _spans(len(found.sample_starts) - 1)
    for first, end in spans:
        _check_span(format, known, found, first, end)
    _check_wrong_count(format, known, found)
    _check_single_samples(format, known, found)
    return len(spans)


def _check_scan(known: KnownShard, found: ShardScan) -> None:
    starts, crcs, pieces = found.sample_starts, found.layout_crcs, found.piece_samples
    num_pieces = len(starts) - 1
    require(
        starts.dtype == np.int64 and starts.ndim == 1 and num_pieces >= 0, known, "sample_starts are int64, (n + 1,)"
    )
    require(crcs.dtype == np.uint32 and crcs.shape == (num_pieces,), known, "layout_crcs are uint32, one a piece")
    require(bool((np.diff(starts) > 0).all()), known, "sample_starts ascend, so that no sample is without bytes")
    inside = num_pieces == 0 or (starts[0] >= 0 and starts[-1] <= len(known.data))
    require(bool(inside), known, f"samples lie in bytes [{starts[0]}, {starts[-1]}), the shard has {len(known.data)}")
    if pieces is not None:
        require(
            pieces.shape == (num_pieces,) and bool((pieces > 0).all()), known, "piece_samples are positive, one a piece"
        )
    if found.piece_decoded_bytes is not None:
        fine = found.piece_decoded_bytes.shape == (num_pieces,) and bool((found.piece_decoded_bytes >= 0).all())
        require(fine, known, "piece_decoded_bytes has one value a piece, none negative")
    _check_ends(known, found)
    num_samples, expected = found.num_samples, len(known.samples)
    require(num_samples == expected, known, f"a scan finds {num_samples} samples, and {expected} are there")
    head = dict(found.head)
    try:
        again = json.loads(json.dumps(head, allow_nan=False))
    except (TypeError, ValueError) as error:
        require(False, known, f"the head of a scan is no JSON: {error}")
    require(same(again, head), known, f"the head of a scan is {head!r:.200}, and {again!r:.200} after JSON")
    counts = {(type(name), type(count)) for name, count in found.notes.items()} <= {(str, int)}
    require(counts, known, "notes are counts by name")


def _check_ends(known: KnownShard, found: ShardScan) -> None:
    starts, ends = found.sample_starts, found.piece_ends
    if ends is None:
        return
    require(found.piece_samples is not None, known, "only pieces have piece_ends")
    require(ends.dtype == np.int64 and ends.shape == (len(starts) - 1,), known, "piece_ends are int64, one a piece")
    require(bool((ends >= starts[1:]).all()), known, "no piece ends before the next one begins")
    ascend = bool((np.diff(ends) > 0).all()) and (not len(ends) or ends[-1] == starts[-1])
    require(ascend, known, "piece_ends ascend to the last start")
    require(bool((ends[:-2] <= starts[2:-1]).all()), known, "no piece has bytes of the next but one")


def _check_same_scan(known: KnownShard, one: ShardScan, other: ShardScan) -> None:
    for what in ("sample_starts", "layout_crcs", "piece_samples", "piece_decoded_bytes", "piece_ends", "head", "notes"):
        a, b = getattr(one, what), getattr(other, what)
        a, b = (dict(a), dict(b)) if isinstance(a, Mapping) else (a, b)
        require(same(a, b), known, f"{what} of two scans differ: {a!r:.200} and {b!r:.200}")


def _check_span(format: Format, known: KnownShard, found: ShardScan, first: int, end: int) -> None:  # noqa: A002
    """Parse some consecutive pieces in every way, and compare with the scan and the samples."""
    begin, stop = int(found.sample_starts[first]), int(found.ends[end - 1])
    whole = known.data[begin:stop]
    before = found.samples_before()
    expected = known.samples[int(before[first]) : int(before[end])]
    what = f"pieces [{first}, {end}) at bytes [{begin}, {stop})"
    starts = None if found.piece_samples is not None else (found.sample_starts[first : end + 1] - begin).tolist()
    options: list[list[int] | None] = [None] if starts is None else [starts, None]
    for given in options:
        for buffer in (whole, memoryview(whole), bytearray(whole)):
            label = f"{what}, {'with' if given else 'without'} starts, in {type(buffer).__name__}"
            records = format.parse(buffer, Span(known.name, begin, len(expected), given, found.head))
            _check_records(records, known, expected, found.layout_crcs[first:end].tolist(), label)
            samples = [records.sample(number) for number in range(len(expected))]
            if isinstance(buffer, bytearray):
                buffer[:] = b"\xaa" * len(buffer)
            fine = all(map(same, samples, expected))
            require(fine, known, f"{label}: a sample does not own its bytes, they change with the buffer")
        if format.has_views:
            span = Span(known.name, begin, len(expected), given, found.head)
            views = format.parse_views(whole, memoryview(whole), span)
            fine = all(_as_bytes(views.sample(number)) == expected[number] for number in range(len(expected)))
            require(fine, known, f"{what}: samples of views differ from those of copies")


def _check_records(
    records: Records, known: KnownShard, expected: Sequence[Sample], crcs: list[int], label: str
) -> None:
    require(len(records) == len(expected), known, f"{label}: {len(records)} samples, and {len(expected)} are there")
    given = records.layout_crcs().tolist()
    require(given == crcs, known, f"{label}: layout CRCs {given[:5]}, and by the scan {crcs[:5]}")
    for number in reversed(range(len(expected))):
        sample = records.sample(number)
        fine = same(sample, expected[number])
        require(fine, known, f"{label}: sample {number} is {sample!r:.300}, and should be {expected[number]!r:.300}")
    columns = records.columns() if isinstance(records, ColumnRecords) else None
    if columns is None:
        return
    for number in range(len(expected)):
        pairs = zip(columns.kinds, columns.arrays, strict=True)
        row = {name: value_in(kind, array, number) for (name, kind), array in pairs}
        fine = same(row, expected[number])
        require(fine, known, f"{label}: row {number} of its columns is {row!r:.300}, unlike its sample")


def _check_wrong_count(format: Format, known: KnownShard, found: ShardScan) -> None:  # noqa: A002
    """Request one sample more than there are, and one fewer, as by an index of another shard."""
    if not known.samples:
        return
    begin, stop = int(found.sample_starts[0]), int(found.sample_starts[-1])
    for wrong in {len(known.samples) + 1, len(known.samples) - 1} - {0}:
        try:
            records = format.parse(known.data[begin:stop], Span(known.name, begin, wrong, None, found.head))
            for number in range(wrong):
                records.sample(number)
        except ShardError:
            continue
        except Exception as error:
            words = f"{wrong} samples are asked for where {len(known.samples)} are, which raises {error!r}"
            raise AssertionError(f"{format.name}, shard {known.name!r}: {words}") from error
        require(False, known, f"{wrong} samples are given out where {len(known.samples)} are")


def _check_single_samples(format: Format, known: KnownShard, found: ShardScan) -> None:  # noqa: A002
    before = found.samples_before().tolist()
    for piece in range(len(found.sample_starts) - 1):
        if before[piece + 1] - before[piece] != 1:
            continue
        begin, end = int(found.sample_starts[piece]), int(found.ends[piece])
        sample = format.read_sample(known.read, end, Span(known.name, begin, 1, None, found.head))
        expected = known.samples[before[piece]]
        fine = same(sample, expected)
        require(fine, known, f"alone it is {sample!r:.300} for sample {before[piece]}, in a span {expected!r:.300}")


def _spans(num_pieces: int) -> list[tuple[int, int]]:
    """Return all spans of a few pieces; of many, those between borders at both ends and in the middle."""
    middle = num_pieces // 2
    of_many = (0, 1, middle, middle + 1, num_pieces - 1, num_pieces)
    return list(combinations(of_many if num_pieces > 6 else range(num_pieces + 1), 2))


def _as_bytes(sample: Sample) -> Sample:
    return {name: bytes(value) if isinstance(value, memoryview) else value for name, value in sample.items()}


def _in_memory(known: KnownShard, found: ShardScan) -> int:
    return len(known.data) + int(0 if found.piece_decoded_bytes is None else found.piece_decoded_bytes.sum())
