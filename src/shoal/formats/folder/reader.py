"""Folders of single files: each file is a sample, its first directory the class, and a table may add fields.

A file is a shard of one extent, so nothing is read to index it, and only its size is known. The tables are as in
Hugging Face's folders: ``metadata.csv`` or ``metadata.jsonl`` with a column ``file_name``.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from posixpath import dirname, join, normpath, splitext
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import SourceError
from shoal.formats.folder.class_directories import CLASS_FIELD, ClassDirectories, class_directory
from shoal.formats.rows.records import BadRecordError, CutRecords, borders_in
from shoal.formats.shard_format import ROW, Format, ReadBytes, Sample, Span
from shoal.hints import MOST_POINTER_BYTES, pointer_in
from shoal.index.assembly import fingerprint
from shoal.index.cutting import CUTTING_RULE, layout_of
from shoal.index.shard_scan import Buffer, ShardScan
from shoal.index.table import Index

METADATA_NAMES = ("metadata.csv", "metadata.jsonl")
_FILE_NAME = "file_name"
_MEDIA = (
    *(".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"),
    *(".wav", ".mp3", ".flac", ".ogg", ".opus", ".m4a"),
    *(".mp4", ".webm", ".mkv", ".avi", ".mov"),
    *(".npy", ".npz"),
)


class Folder(Format):
    """The format of a directory of single files, as ``format="folder"``; a sample is a file.

    A sample has ``__key__`` (the path without suffix); the bytes, under the suffix in lower case (``"jpg"``) or, if
    ``field`` is given, under that name; ``cls``, the number of its class, the first directory in its path; and the
    columns of its row, if a ``metadata.csv`` (texts) or ``metadata.jsonl`` lies in its directory or above.

    ``labels`` turns ``cls`` on or off; the default is on if there is no such table and files lie in directories.
    ``classes`` are the names of the classes by number. The default is the sorted names of the directories, including
    empty directories, in all splits (``train/cat``, ``val/cat``). ``below_splits``, which is set automatically, is true
    if names begin with the directory of a split. ``suffixes`` are the suffixes of sample files: by default images,
    audio, video and numpy.

    Examples
    --------
    >>> pets = shoal.open("pets", format=shoal.formats.Folder(suffixes=(".txt",), field="text"))
    >>> pets[125], pets.classes
    ({'__key__': 'dog/005', 'text': b'dog 5', 'cls': 1}, ('cat', 'dog', 'owl'))
    """

    name: str = "folder"

    def __init__(
        self,
        *,
        field: str | None = None,
        labels: bool | None = None,
        suffixes: Sequence[str] = _MEDIA,
        classes: Sequence[str] | None = None,
        below_splits: bool = False,
    ) -> None:
        self.field, self.labels = field, labels
        self.suffixes = tuple(suffix.lower() for suffix in suffixes)
        self.classes = None if classes is None else tuple(classes)
        self.below_splits = below_splits
        self._numbers = {name: number for number, name in enumerate(self.classes or ())}
        usual = {"field": None, "labels": None, "suffixes": _MEDIA, "classes": None, "below_splits": False}
        chosen = {name: getattr(self, name) for name, value in usual.items() if getattr(self, name) != value}
        self.options = {name: list(value) if isinstance(value, tuple) else value for name, value in chosen.items()}

    def with_classes(self, classes: ClassDirectories | None) -> Folder:
        """Return a copy with labels of these classes; without labels if there are none."""
        if classes is None:
            return Folder(field=self.field, labels=False, suffixes=self.suffixes, classes=self.classes)
        return Folder(
            field=self.field, labels=True, suffixes=self.suffixes,
            classes=classes.names, below_splits=classes.below_splits,
        )  # fmt: skip

    def check_rows(self, rows: Mapping[str, Mapping[str, Any]], *, path: str) -> None:
        """Raise `SourceError` if a row of the table at ``path`` has a column that would replace another field."""
        for name, row in rows.items():
            taken = {"__key__", self._field(name)} | ({CLASS_FIELD} if self.labels else set())
            if clashes := sorted(taken & row.keys()):
                msg = f"{path}: the column {clashes[0]!r} would replace another field of the sample of {name}"
                raise SourceError(msg, hint='rename it in the table; Folder(field="...") renames the bytes of files')

    def _field(self, name: str) -> str:
        return self.field or splitext(name)[1][1:].lower() or "data"

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:  # noqa: ARG002  # nothing is read
        """Find one sample, or none in an empty file, which ``notes`` count as ``empty_files``; nothing is read."""
        if not num_bytes:
            return ShardScan(np.zeros(1, np.int64), np.zeros(0, np.uint32), notes={"empty_files": 1})
        starts = np.array([0, num_bytes], dtype=np.int64)
        return ShardScan(starts, _size_crcs(starts[1:]))

    def scan_as(self, head: Mapping[str, Any], read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Scan like `scan`, and keep the head, which comes from the tables beside the files."""
        return replace(self.scan(read, num_bytes, shard=shard), head=head)

    def parse(self, buffer: Buffer, span: Span) -> CutRecords:
        """Open the bytes of a file; raises `ShardError` if their number changed since the file was indexed."""
        starts = borders_in(buffer, span, lambda: [0, len(buffer)], what="files")
        decode, sizes = partial(self._decode, span.shard, span.head), np.array([len(buffer)], dtype=np.int64)
        return CutRecords(buffer, starts, span, decode=decode, crcs=lambda: _size_crcs(sizes))

    def _decode(self, shard: str, head: Mapping[str, Any], data: bytes) -> Sample:
        if len(data) <= MOST_POINTER_BYTES and (pointer := pointer_in(data)):  # no scan has looked at it
            raise BadRecordError(pointer[0], hint=pointer[1])
        sample: Sample = {"__key__": splitext(shard)[0], self._field(shard): data}
        if self.classes is not None:
            sample[CLASS_FIELD] = self._numbers.get(class_directory(shard, below_splits=self.below_splits), -1)
        return {**sample, **head.get(ROW, {})}


def _size_crcs(num_bytes: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the layout CRC of files: the CRC of their sizes, the only known property; shape as ``num_bytes``."""
    return np.array([crc32(size.to_bytes(8, "little")) for size in num_bytes.tolist()], dtype=np.uint32)


def index_of_files(
    format_name: str,
    names: Sequence[str],
    num_bytes: NDArray[np.int64],
    versions: Sequence[str],
    *,
    rows: Mapping[str, Mapping[str, Any]],
    metadata: Mapping[str, Any],
) -> Index:
    """Return the index of these files, equal to a scan of each; O(files), vectorised: a million take seconds.

    Arrays have shape (num_files,). ``rows`` come from the tables beside the files, by name of file. Empty files have
    no extent.
    """
    full = np.flatnonzero(num_bytes)
    sizes = num_bytes[full]
    shard = full.astype(np.int32)
    zeros, ones = np.zeros(len(full), dtype=np.int64), np.ones(len(full), dtype=np.int64)
    large = bool(len(sizes)) and int(sizes.max()) >= 1 << 32
    num_empty = len(names) - len(full)
    return Index(
        format=format_name,
        shard_names=tuple(names),
        shard_bytes=num_bytes,
        shard_versions=tuple(versions),
        shard_heads={number: {ROW: dict(rows[name])} for number, name in enumerate(names) if name in rows},
        extent_shard=shard,
        extent_first_byte=zeros,
        extent_end_byte=sizes,
        extent_num_samples=ones,
        extent_decoded_bytes=sizes,
        extent_layout_crc=layout_of(_size_crcs(sizes)),
        extent_checksum=None,
        sample_bytes=sizes.astype(np.uint64 if large else np.uint32),
        fingerprint=fingerprint(names, shard, zeros, sizes, ones),
        notes={"empty_files": num_empty} if num_empty else {},
        metadata={"cutting_rule": CUTTING_RULE, **metadata},
    )


def metadata_rows(data: Buffer, *, name: str, path: str) -> dict[str, dict[str, Any]]:
    """Return the rows of one table by file name; ``name`` is the path of the table, relative like the paths of files.

    Raises `SourceError`: it cannot be read, has no column ``file_name``, or has two rows for a file.
    """
    try:
        text = bytes(data).decode("utf-8-sig")
        if name.endswith(".csv"):
            listed: list[dict[str, Any]] = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
        else:
            listed = [json.loads(line) for line in text.splitlines() if line.strip()]
        rows: dict[str, dict[str, Any]] = {}
        for row in listed:
            file = normpath(join(dirname(name), str(row[_FILE_NAME])))
            wrong = f"two rows name {file}" if file in rows else ""
            if None in row or (None in row.values() and name.endswith(".csv")):
                wrong = f"the row of {file} has more or fewer fields than there are columns"
            if wrong:
                raise ValueError(wrong)  # reported below
            rows[file] = {column: value for column, value in row.items() if column != _FILE_NAME}
    except (ValueError, TypeError, LookupError, csv.Error, RecursionError) as error:
        what = f"it has no column {_FILE_NAME!r}" if isinstance(error, KeyError) else str(error)
        msg = f"{path}: this table cannot be used: {what}"
        hint = f"each row names its file in {_FILE_NAME!r}, relative to the table"
        raise SourceError(msg, hint=hint) from None
    return rows
