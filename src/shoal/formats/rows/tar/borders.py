"""Checks of sample borders that another tool lists for a tar, by the first header after each of them.

The two halves of a sample that was cut begin with the same key, and no two consecutive samples do. So the
headers at the borders alone show a cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shoal.formats.rows.tar.header_fields import (
    BLOCK_BYTES,
    check_sums,
    header_names,
    is_of_interest,
    pax_records,
    read_number,
    text,
)
from shoal.formats.rows.tar.headers import IS_REGULAR
from shoal.formats.rows.tar.names import key_and_suffix
from shoal.formats.shard_format import ReadBytes
from shoal.index.shard_scan import BEHIND_BYTES, Buffer

_AT_ONCE = 4096  # borders, so that 6 MB are held
_GAP_BYTES = 32768  # reading across a gap this small costs less than another read
_SPAN_BYTES = 1 << 20
_PAX_KIND, _LONG_NAME_KIND = ord("x"), ord("L")


def doubtful_borders(read: ReadBytes, borders: NDArray[np.int64], num_bytes: int) -> list[int] | None:
    """Return the numbers of ``borders`` that need a scan, since a header there is unusual; 2 us each, 6 MB.

    None if a border is wrong: no header follows it, or its key is the key at the border before. The last border, where
    the last sample ends, is not checked.
    """
    if (borders % BLOCK_BYTES).any():
        return None
    doubtful: list[int] = []
    before: str | None = ""  # no key equals this
    for first in range(0, len(borders) - 1, _AT_ONCE):
        some = borders[first : min(first + _AT_ONCE, len(borders) - 1)]
        blocks = np.concatenate(list(_read_blocks(read, some, num_bytes)))
        if not check_sums(blocks[:, 0]).all():
            return None
        for number, key in enumerate(_keys(blocks), first):
            if number and (key is None or before is None):
                doubtful.append(number)
            elif key == before:
                return None
            before = key
    return doubtful


def cut_sample(buffer: Buffer, starts: Sequence[int]) -> tuple[int, str] | None:
    """Return the first sample that has the key of the previous sample, and the key; None if there is no such sample.

    ``starts`` are offsets in the buffer, shape (num_samples + 1,). Bytes after the last sample count as the next
    sample; `BEHIND_BYTES` suffice. About 1 us a sample.
    """
    borders = np.asarray(starts, dtype=np.int64)
    if len(buffer) < starts[-1] + BLOCK_BYTES:
        borders = borders[:-1]
    if len(borders) < 2 or ((borders - borders[0]) % BLOCK_BYTES).any() or (np.diff(borders) <= 0).any():
        return None
    within = memoryview(buffer)[int(borders[0]) :]
    if len(within) < int(borders[-1] - borders[0]) + BLOCK_BYTES:
        return None
    blocks = _gathered(within, borders - borders[0])
    for number, (before, key) in enumerate(pairwise(_keys(blocks)), 1):
        if key is not None and key == before:
            return number, key
    return None


def _read_blocks(read: ReadBytes, borders: NDArray[np.int64], num_bytes: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the blocks at these borders, with few enough reads to be quick; shape (n, 3, 512) each."""
    for group in np.split(borders, np.flatnonzero(np.diff(borders) > _GAP_BYTES) + 1):
        near = group
        while len(near):
            span = near[: int(np.searchsorted(near, near[0] + _SPAN_BYTES))]
            first, end = int(span[0]), min(int(span[-1]) + BEHIND_BYTES, num_bytes)
            yield _gathered(read(first, end), span - first)
            near = near[len(span) :]


def _gathered(buffer: Buffer, borders: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return three blocks from each border, repeating the last block past the end; shape (num_borders, 3, 512).

    The blocks begin with the header of a member; or with an extended header, its payload, and the member's header.
    """
    num_blocks = len(buffer) // BLOCK_BYTES
    table = np.frombuffer(buffer, dtype=np.uint8, count=num_blocks * BLOCK_BYTES).reshape(num_blocks, BLOCK_BYTES)
    numbers = (borders // BLOCK_BYTES)[:, None] + np.arange(BEHIND_BYTES // BLOCK_BYTES)
    blocks: NDArray[np.uint8] = table[np.minimum(numbers, num_blocks - 1)]
    return blocks


def _keys(blocks: NDArray[np.uint8]) -> list[str | None]:
    """Return the key of the member that begins with each of these blocks; None if the key needs more blocks."""
    heads = np.ascontiguousarray(blocks[:, 0])
    names: list[str | None] = list(header_names(heads))
    kinds = heads[:, 156]
    for number in np.flatnonzero(~IS_REGULAR[kinds]).tolist():
        names[number] = None
    extended = np.flatnonzero((kinds == _PAX_KIND) | (kinds == _LONG_NAME_KIND))
    own = np.ascontiguousarray(blocks[extended, 2])
    usable = check_sums(own) & IS_REGULAR[own[:, 156]] if len(own) else own
    own_names = header_names(own)
    for at in np.flatnonzero(usable).tolist():
        number = int(extended[at])
        names[number] = _named(heads[number].tobytes(), blocks[number, 1].tobytes(), own_names[at])
    parts = (None if name is None else key_and_suffix(name) for name in names)
    return [None if pair is None else pair[0] for pair in parts]


def _named(extended: bytes, payload: bytes, own_name: str) -> str | None:
    """Return the name of a member after an extended header with a payload of one block; None if there is more."""
    size = read_number(extended[124:136])
    if size is None or not 0 < size <= BLOCK_BYTES:
        return None
    if extended[156] == _LONG_NAME_KIND:
        return text(payload[:size].partition(b"\0")[0])
    if not is_of_interest(payload[:size]):
        return own_name
    try:
        path = pax_records(payload[:size]).get(b"path")
    except ValueError:
        return None
    return text(path.rstrip(b"/")) if path else own_name
