"""Indexes that other tools left beside shards: sample offsets, known without reading a shard's headers.

Supported are Energon's ``.tar.idx`` (offsets of samples, 8 bytes each), DALI's ``wds2idx`` and ``tfrecord2idx``, and
MXNet's ``.idx`` (key and offset of a record, as text). An index is compared with the shard at a few places; if it does
not fit, the shard is scanned as if there were none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from posixpath import basename, dirname, join, splitext
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import IndexFileError, ShardError
from shoal.formats.shard_format import Format, ReadBytes
from shoal.formats.tar.borders import doubtful_borders
from shoal.formats.tar.names import key_and_suffix
from shoal.index.shard_scan import Buffer, ShardScan
from shoal.index.unseen_borders import ALL_SEEN, BY_BORDERS

FORMATS_WITH_INDEXES = ("tar", "tfrecord", "recordio")
_WITH_NAME = 4  # words per member in an index with names
_PLACES = 8  # where an index is compared with its shard: both ends, and in between
_BLOCK = 512
_TAIL_LIMIT_BYTES = 1 << 20  # of zeros after the last member of a tar
_FEW_SCANS = 64  # of pairs of samples; more would cost more than a scan of the shard


def foreign_names(path: str) -> tuple[str, ...]:
    """Return the possible names of an index beside a shard.

    >>> foreign_names("data/a-000.b.tar")
    ('data/a-000.b.tar.idx', 'data/a-000.b.idx', 'data/a-000.idx')
    """
    directory, name = dirname(path), basename(path)
    return tuple(join(directory, f"{stem}.idx") for stem in (name, splitext(name)[0], name.partition(".")[0]))


def scan_by_index(
    format: Format,  # noqa: A002
    index: Buffer,
    read: ReadBytes,
    num_bytes: int,
    *,
    shard: str,
    is_near: bool = True,
) -> ShardScan | None:
    """Return the samples of a shard as listed in a third-party index; None if it is none, or does not fit the shard.

    Checked are that its offsets ascend, where the last sample ends, and at 8 places that a scan of two samples agrees.
    Of a tar that ``is_near``, so that a read costs microseconds, the headers at all borders are read too, to rule out a
    sample cut in two. The layout CRCs cover the offsets (`by_borders`), since not all headers are read; each sample is
    still checked in full whenever it is read.
    """
    try:
        borders = _borders(format.name, bytes(index), num_bytes)
    except (ValueError, IndexError, OverflowError):
        return None
    if len(borders) < 2 or borders[0] < 0 or borders[-1] > num_bytes or (np.diff(borders) <= 0).any():
        return None
    try:
        if not _ends_well(format.name, read, int(borders[-1]), num_bytes):
            return None
        head = _compared(format, borders, read, shard)
        sees_all = is_near and format.name == "tar"
        if head is None or (sees_all and not _none_is_cut(format, borders, read, num_bytes, shard)):
            return None
    except ShardError:
        return None
    scan = ShardScan(borders, np.zeros(len(borders) - 1, dtype=np.uint32), head=head)
    return by_borders(scan, told=ALL_SEEN if sees_all else True)


def by_borders(scan: ShardScan, *, told: Any = True) -> ShardScan:
    """Reduce a scan to the borders of its samples, whose CRCs replace those of headers.

    ``told`` is what the head records about these borders.
    """
    pairs = np.stack([scan.sample_starts[:-1], scan.sample_starts[1:]], axis=1).astype("<i8").tobytes()
    crcs = np.array([crc32(pairs[at : at + 16]) for at in range(0, len(pairs), 16)], dtype=np.uint32)
    return replace(scan, layout_crcs=crcs, head={**scan.head, BY_BORDERS: told})


def wrong_border(what: str, *, shard: str, byte: int) -> IndexFileError:
    """Return the error for samples that disprove a border of a third-party index: not damage to be skipped."""
    msg = f"{shard}, byte {byte}: {what}; the index was made by that of another tool, which is wrong"
    return IndexFileError(msg, hint="take the .idx beside the shard away, and run `shoal index` on the shards")


def _borders(format_name: str, index: bytes, num_bytes: int) -> NDArray[np.int64]:
    """Return the offsets where samples begin and the last one ends; ValueError if the index is none."""
    if format_name == "tar" and not index.startswith(b"v1."):
        return np.frombuffer(index, dtype="<u8").astype(np.int64)
    lines = index.decode("utf-8").splitlines()
    if format_name == "tar":
        return _of_wds2idx(lines)
    rows = [line.split() for line in lines if line.strip()]
    if format_name == "tfrecord":
        table = np.array([[int(first), int(size)] for first, size in rows], dtype=np.int64)
        if (table[1:, 0] != table[:-1].sum(axis=1)).any():
            msg = "records do not follow each other"
            raise ValueError(msg)
        return np.append(table[:, 0], table[-1].sum())
    return np.append(np.sort(np.array([int(row[-1]) for row in rows], dtype=np.int64)), num_bytes)


def _of_wds2idx(lines: list[str]) -> NDArray[np.int64]:
    """Return the borders in a ``wds2idx`` file: a sample ends with its last payload, padded, where the next begins."""
    version, count = lines[0].split()
    per_file = {"v1.1": 3, "v1.2": _WITH_NAME}[version] if version in ("v1.1", "v1.2") else 0
    if not per_file or len(lines) - 1 != int(count):
        msg = f"version {version}, {count} samples in {len(lines) - 1} lines"
        raise ValueError(msg)
    ends = [0]
    key = ""
    for line in lines[1:]:
        words = line.split(" ")
        if len(words) % per_file:  # names with spaces
            msg = f"{len(words)} words"
            raise ValueError(msg)
        key = _key_of(words, per_file, key)
        offsets, sizes = (np.array(words[at::per_file], dtype=np.int64) for at in (1, 2))
        end = int((offsets + sizes).max())
        ends.append(end + -end % _BLOCK)
    return np.array(ends, dtype=np.int64)


def _key_of(words: list[str], per_file: int, before: str) -> str:
    """Return a sample's key from its members' names, if the index has them; ValueError unless they share a new one.

    Without names, a suffix that occurs twice shows that the line holds two samples.
    """
    if per_file < _WITH_NAME:
        keys = {before} if len({*words[0::per_file]}) == len(words) // per_file else set()
    else:
        parts = map(key_and_suffix, words[3::per_file])
        keys = {"" if part is None else part[0] for part in parts} - {"", before}
    if len(keys) != 1:
        msg = f"{len(keys)} samples in a line, or the one before goes on there"
        raise ValueError(msg)
    return keys.pop()


def _ends_well(format_name: str, read: ReadBytes, end: int, num_bytes: int) -> bool:
    """Return True if nothing but padding follows the last sample."""
    if format_name != "tar":
        return end == num_bytes
    if end % _BLOCK or num_bytes - end > _TAIL_LIMIT_BYTES:
        return False
    return not bytes(read(end, num_bytes)).strip(b"\0")


def _compared(
    format: Format,  # noqa: A002
    borders: NDArray[np.int64],
    read: ReadBytes,
    shard: str,
) -> dict[str, Any] | None:
    """Return the head of the shard; None if a scan finds other samples. Sets the first border to the scanned one."""
    head: dict[str, Any] = {}
    for place in _places(len(borders) - 1):
        wanted = borders[place : place + 3]
        begin, end = (0 if place == 0 else int(wanted[0])), int(wanted[-1])

        def part(first_byte: int, end_byte: int, /, begin: int = begin) -> Buffer:
            return read(begin + first_byte, begin + end_byte)

        found = format.scan(part, end - begin, shard=shard)
        starts = found.sample_starts + begin
        if place == 0:
            head = dict(found.head)
            borders[0] = starts[0]
        if len(starts) != len(wanted) or (starts[1:] != wanted[1:]).any() or (place and starts[0] != wanted[0]):
            return None
        if "pax_globals" in found.head:  # they would apply to all that follows
            return None
    return head


def _none_is_cut(
    format: Format,  # noqa: A002
    borders: NDArray[np.int64],
    read: ReadBytes,
    num_bytes: int,
    shard: str,
) -> bool:
    """Return True if no border lies inside a sample, by the headers there, or by scans where these are ambiguous."""
    doubtful = doubtful_borders(read, borders, num_bytes)
    if doubtful is None:
        return False
    if len(doubtful) > max(_FEW_SCANS, len(borders) // _FEW_SCANS):
        return bool(np.array_equal(format.scan(read, num_bytes, shard=shard).sample_starts, borders))
    return all(_is_pair(format, borders[place - 1 : place + 2], read, shard) for place in doubtful)


def _is_pair(format: Format, wanted: NDArray[np.int64], read: ReadBytes, shard: str) -> bool:  # noqa: A002
    """Return True if a scan finds two samples between these borders, split at the middle one."""
    begin, end = int(wanted[0]), int(wanted[-1])

    def part(first_byte: int, end_byte: int, /) -> Buffer:
        return read(begin + first_byte, begin + end_byte)

    found = format.scan(part, end - begin, shard=shard)
    # A scan that begins here does not count what precedes the first member as part of the first sample.
    return len(found.sample_starts) == 3 and bool((found.sample_starts[1:] + begin == wanted[1:]).all())


def _places(num_samples: int) -> Iterator[int]:
    """Yield the samples at which pairs are compared, the first and last pair included; fixed for a given count."""
    last = max(0, num_samples - 2)
    yield from sorted({last * step // (_PLACES - 1) for step in range(_PLACES)})
