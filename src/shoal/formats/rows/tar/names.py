"""Grouping of tar members into samples by their names: the rule of WebDataset 1.0.2, except for files of macOS.

A name is split at the first dot of its last path component: the part before is the key, the part after the suffix
(lower-cased). Consecutive members with the same key form one sample. Members that are not regular files, have no such
dot in their names or are named ``__name__`` at the top belong to no sample, and do not end one. Files that macOS leaves
beside other files, such as ``train/._0.jpg``, do not either; in WebDataset they are samples, which split
``train/0.jpg`` from ``train/0.cls``.
"""

from __future__ import annotations

import re
from array import array
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.compiled_cutting import tar_borders
from shoal.formats.rows.tar.header_fields import BLOCK_BYTES, text
from shoal.formats.rows.tar.headers import (
    DEVICE_KINDS,
    DIRECTORY_KINDS,
    LINK_KINDS,
    REGULAR_KINDS,
    HeaderWalk,
    TarMembers,
)
from shoal.index.shard_scan import Buffer

# The exact expressions of WebDataset.
_KEY_AND_SUFFIX = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
_META = re.compile(r"__[^/]*__($|/)")
# Fields that WebDataset adds to every sample itself, so that a suffix of this name is a duplicate.
_RESERVED = frozenset(("__key__", "__url__"))


def key_and_suffix(name: str) -> tuple[str, str] | None:
    """Return the key and the suffix of a regular member of this name; None if it belongs to no sample.

    >>> key_and_suffix("train.v2/n01.x/000.seg.PNG"), key_and_suffix("dir/.hidden")
    (('train.v2/n01.x/000', 'seg.png'), ('dir/', 'hidden'))
    >>> key_and_suffix(".hidden"), key_and_suffix("__meta__/a.json"), key_and_suffix("dir/._000.png")
    (None, None, None)
    """
    slash = name.rfind("/") + 1
    dot = name.find(".", slash)
    # The fast path of nearly all names, none of them of macOS; the dot in the expression does not match a newline.
    if dot > slash and name[0] != "_" and "\n" not in name:
        return name[:dot], name[dot + 1 :].lower()
    match = None if _is_meta(name) or _is_of_macos(name) else _KEY_AND_SUFFIX.match(name)
    return (match[1], match[2].lower()) if match else None


def _is_meta(name: str) -> bool:
    """Return True if WebDataset skips a member of this name as metadata."""
    if not name.startswith("__"):
        return False
    return ("/" not in name and name.endswith("__")) or _META.match(name) is not None


def _is_of_macos(name: str) -> bool:
    """Return True for the metadata files of macOS: ``._NAME`` beside a file, and ``.DS_Store`` in a directory."""
    last = name[name.rfind("/") + 1 :]
    return last.startswith("._") or last == ".DS_Store"


def _note_of(kind: int, name: str) -> str:
    """Return the name under which the notes count a member that belongs to no sample."""
    if kind in LINK_KINDS:
        return "links"
    if kind in DIRECTORY_KINDS or name.endswith("/"):
        return "directories"
    if kind in DEVICE_KINDS:
        return "devices"
    if kind not in REGULAR_KINDS:
        return "other_members"
    if _is_of_macos(name):
        return "macos_members"
    return "meta_members" if _is_meta(name) else "members_without_extension"


class Grouping:
    """The grouping of members into samples, over all the spans of one shard passed to `add`.

    ``layout_crcs`` cover the headers of all members between a sample's first and last byte. Members between two samples
    belong to the later one; since it is not known at once whether the sample continues after them, two CRCs are kept:
    one from the start of the sample, one from the end of its last member.
    """

    def __init__(self, *, shard: str) -> None:
        self._shard = shard
        self._starts, self._crcs = array("q"), array("I")
        self._begun = False
        self._key: str | None = None
        self._seen: set[str] = set()
        self._end = 0
        self._crc = self._crc_with_gap = self._gap_crc = 0
        self.notes: dict[str, int] = {}

    def add(self, members: TarMembers) -> None:
        """Group the members of the next span; about 1.5 us each.

        Raises `ShardError` with the byte of the second member if a suffix occurs twice in one sample.
        """
        view, base = memoryview(members.buffer), members.first_byte
        key, end, seen, crc = self._key, self._end, self._seen, self._crc_with_gap
        spans = (members.starts.tolist(), (members.headers + BLOCK_BYTES).tolist(), members.ends.tolist())
        for name, kind, start, header_end, member_end in zip(
            members.names, members.kinds.tolist(), *spans, strict=True
        ):
            parts = key_and_suffix(name) if kind in REGULAR_KINDS else None
            if parts is None:
                headers, note = view[start:header_end], _note_of(kind, name)
                crc, self._gap_crc = crc32(headers, crc), crc32(headers, self._gap_crc)
                self.notes[note] = self.notes.get(note, 0) + 1
                continue
            name_key, field = parts
            if name_key != key:
                key, seen = name_key, set()
                if self._begun:
                    self._starts.append(end)
                    self._crcs.append(self._crc)
                    crc = self._gap_crc
                else:
                    self._begun = True
                    self._starts.append(base + start)
                    crc = 0
            if field in seen or field in _RESERVED:
                what = f"the suffix {field!r} comes a second time in the sample {name_key!r}"
                why = " (WebDataset keeps this name for itself)" if field in _RESERVED else ""
                hint = "rename one of the members, or give each sample a key of its own; suffixes count lower-cased"
                raise ShardError(what + why, shard=self._shard, byte=base + start, hint=hint)
            seen.add(field)
            crc = self._crc = crc32(view[start:header_end], crc)
            self._gap_crc = 0
            end = base + member_end
        self._key, self._end, self._seen, self._crc_with_gap = key, end, seen, crc

    def after_plain(self, window: Buffer, walk: HeaderWalk) -> Buffer:
        """Group the plain members at the start of ``window`` and move ``walk`` past them; return the rest.

        Needs the compiled module: without it, the rest is the whole window.
        """
        if tar_borders is None or not walk.is_plain:
            return window
        first_byte = walk.position
        key = None if self._key is None else self._key.encode("utf-8", "surrogateescape")
        seen = "".join(f"{field}\0" for field in self._seen).encode("utf-8", "surrogateescape")
        group = (key, seen, self._end, self._crc, self._crc_with_gap, self._gap_crc, self._begun)
        grouped = tar_borders(window, first_byte, walk.num_bytes - first_byte, group)
        if grouped is None:
            return window
        num_bytes, num_members, newest, starts, crcs, key, seen, self._end, self._crc = grouped
        walk.passed(num_members, newest=first_byte + newest, position=first_byte + num_bytes)
        self._starts.frombytes(starts)
        self._crcs.frombytes(crcs)
        self._key, self._seen = text(key), set(text(seen).split("\0")[:-1])
        self._crc_with_gap, self._gap_crc, self._begun = self._crc, 0, True
        return memoryview(window)[num_bytes:]

    def taken(self) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Return the next final borders and CRCs, for `BorderSink.add`."""
        taken = np.frombuffer(self._starts, dtype=np.int64), np.frombuffer(self._crcs, dtype=np.uint32)
        self._starts, self._crcs = array("q"), array("I")
        return taken

    def last(self) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Return the border and CRC of the last sample, which ends where its last member does."""
        ends, crcs = [self._end] * self._begun, [self._crc] * self._begun
        return np.array(ends, dtype=np.int64), np.array(crcs, dtype=np.uint32)
