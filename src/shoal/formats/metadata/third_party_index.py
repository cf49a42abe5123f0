"""Indexes of other tools beside shards, which give sample offsets without reading a shard's headers.

Supported are Energon's ``.tar.idx`` (offsets of samples, 8 bytes each), DALI's ``wds2idx`` and ``tfrecord2idx``, and
MXNet's ``.idx`` (key and offset of a record, as text). Some offsets are compared with the shard; if the index does not
fit, the shard is scanned without it.
"""

from __future__ import annotations

from dataclasses import replace
from posixpath import basename, dirname, join, splitext
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import IndexFileError, ShardError
from shoal.formats.rows.tar.borders import doubtful_borders
from shoal.formats.rows.tar.names import key_and_suffix
from shoal.formats.shard_format import Format, ReadBytes
from shoal.index.shard_scan import ALL_VERIFIED, BY_BORDERS, Buffer, ShardScan

FORMATS_WITH_INDEXES = ("tar", "tfrecord", "recordio", "tokens")
_WDS2IDX_WORDS = {"v1.1": 3, "v1.2": 4}  # per member: suffix, offset, size; and the name
_NUM_COMPARED = 8  # offsets compared with the shard: at both ends, and in between
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
    shard_format: Format, index: Buffer, read: ReadBytes, num_bytes: int, *, shard: str, is_local: bool = True
) -> ShardScan | None:
    """Return the samples of a shard by a third-party index; None if it is not an index, or does not fit the shard.

    Offsets must ascend, the last sample must end where the shard ends, and scans of two samples at 8 offsets must
    agree. In a tar that ``is_local``, where a read costs microseconds, the headers at all borders are read too, so that
    no sample is cut in two. Layout CRCs cover the offsets (`by_borders`), since not all headers are read; each sample
    is still checked in full whenever it is read.
    """
    try:
        borders = _borders(shard_format.name, bytes(index), num_bytes)
    except (ValueError, IndexError, OverflowError):
        return None
    if len(borders) < 2 or borders[0] < 0 or borders[-1] > num_bytes or (np.diff(borders) <= 0).any():
        return None
    is_tar = shard_format.name == "tar"
    try:
        end = int(borders[-1])
        if not (_only_padding_follows(read, end, num_bytes) if is_tar else end == num_bytes):
            return None
        head = _compared_head(shard_format, borders, read, shard)
        if head is None or (is_tar and is_local and _cuts_a_sample(shard_format, borders, read, num_bytes, shard)):
            return None
    except ShardError:
        return None
    scan = ShardScan(borders, np.zeros(len(borders) - 1, dtype=np.uint32), head=head)
    return by_borders(scan, entry=ALL_VERIFIED if is_tar and is_local else True)


def by_borders(scan: ShardScan, *, entry: Any = True) -> ShardScan:
    """Replace the layout CRCs of a scan by CRCs of the sample borders; the head keeps ``entry`` about the borders."""
    pairs = np.stack([scan.sample_starts[:-1], scan.sample_starts[1:]], axis=1).astype("<i8").tobytes()
    crcs = np.array([crc32(pairs[at : at + 16]) for at in range(0, len(pairs), 16)], dtype=np.uint32)
    return replace(scan, layout_crcs=crcs, head={**scan.head, BY_BORDERS: entry})


def wrong_border(what: str, *, shard: str, byte: int) -> IndexFileError:
    """Return the error for samples that contradict a third-party index; it is not damage that may be skipped."""
    msg = f"{shard}, byte {byte}: {what}; the index was made from a wrong index of another tool"
    return IndexFileError(msg, hint="remove the .idx beside the shard, and run `shoal index` on the shards")


def _borders(format_name: str, index: bytes, num_bytes: int) -> NDArray[np.int64]:
    """Return the offsets where samples begin and the last sample ends; ValueError if the bytes are not an index."""
    if format_name == "tar" and not index.startswith(b"v1."):
        return np.frombuffer(index, dtype="<u8").astype(np.int64)
    lines = index.decode("utf-8").splitlines()
    if format_name == "tar":
        return _borders_in_wds2idx(lines)
    rows = [line.split() for line in lines if line.strip()]
    if format_name == "tfrecord":
        table = np.array([[int(first), int(size)] for first, size in rows], dtype=np.int64)
        if (table[1:, 0] != table[:-1].sum(axis=1)).any():
            raise ValueError("records do not follow each other")
        return np.append(table[:, 0], table[-1].sum())
    return np.append(np.sort(np.array([int(row[-1]) for row in rows], dtype=np.int64)), num_bytes)


def _borders_in_wds2idx(lines: list[str]) -> NDArray[np.int64]:
    """Return the borders in a ``wds2idx`` file: a sample begins where the padding of the sample before it ends."""
    version, count = lines[0].split()
    per_member = _WDS2IDX_WORDS.get(version, 0)
    if not per_member or len(lines) - 1 != int(count):
        raise ValueError(f"version {version}, {count} samples in {len(lines) - 1} lines")
    ends, key = [0], ""
    for line in lines[1:]:
        words = line.split(" ")
        if len(words) % per_member:  # names with spaces
            raise ValueError(f"{len(words)} words")
        if version == "v1.2":
            parts = map(key_and_suffix, words[3::per_member])
            keys = {"" if part is None else part[0] for part in parts} - {"", key}
        else:  # without names, a repeated suffix shows that the line holds two samples
            keys = {key} if len({*words[0::per_member]}) == len(words) // per_member else set()
        if len(keys) != 1:
            raise ValueError(f"{len(keys)} samples in a line, or a line that continues the sample of the previous line")
        key = keys.pop()
        offsets, sizes = (np.array(words[at::per_member], dtype=np.int64) for at in (1, 2))
        end = int((offsets + sizes).max())
        ends.append(end + -end % _BLOCK)
    return np.array(ends, dtype=np.int64)


def _only_padding_follows(read: ReadBytes, end: int, num_bytes: int) -> bool:
    is_padded = end % _BLOCK == 0 and num_bytes - end <= _TAIL_LIMIT_BYTES
    return is_padded and not bytes(read(end, num_bytes)).strip(b"\0")


def _compared_head(
    shard_format: Format, borders: NDArray[np.int64], read: ReadBytes, shard: str
) -> dict[str, Any] | None:
    """Return the head of the shard, and correct the first border; None if a scan finds other samples."""
    head: dict[str, Any] = {}
    last = max(0, len(borders) - 3)
    for first in sorted({last * step // (_NUM_COMPARED - 1) for step in range(_NUM_COMPARED)}):
        listed = borders[first : first + 3]
        scan = _scan_of_part(shard_format, read, 0 if first == 0 else int(listed[0]), int(listed[-1]), shard)
        starts = scan.sample_starts
        if first == 0:
            head = dict(scan.head)
            borders[0] = starts[0]
        if len(starts) != len(listed) or (starts[1:] != listed[1:]).any() or (first and starts[0] != listed[0]):
            return None
        if "pax_globals" in scan.head:  # they would apply to all members after them
            return None
    return head


def _cuts_a_sample(
    shard_format: Format, borders: NDArray[np.int64], read: ReadBytes, num_bytes: int, shard: str
) -> bool:
    """Return True if a border lies inside a sample, by its headers, or by a scan if the headers are ambiguous."""
    doubtful = doubtful_borders(read, borders, num_bytes)
    if doubtful is None:
        return True
    if len(doubtful) > max(_FEW_SCANS, len(borders) // _FEW_SCANS):
        return not np.array_equal(shard_format.scan(read, num_bytes, shard=shard).sample_starts, borders)
    for middle in doubtful:
        listed = borders[middle - 1 : middle + 2]
        starts = _scan_of_part(shard_format, read, int(listed[0]), int(listed[-1]), shard).sample_starts
        # The first start may differ: bytes before the first member of a scan belong to no sample.
        if len(starts) != 3 or (starts[1:] != listed[1:]).any():
            return True
    return False


def _scan_of_part(shard_format: Format, read: ReadBytes, begin: int, end: int, shard: str) -> ShardScan:
    """Scan the bytes ``[begin, end)`` of a shard; sample starts are offsets in the shard."""

    def part(first_byte: int, end_byte: int, /) -> Buffer:
        return read(begin + first_byte, begin + end_byte)

    scan = shard_format.scan(part, end - begin, shard=shard)
    return replace(scan, sample_starts=scan.sample_starts + begin)
