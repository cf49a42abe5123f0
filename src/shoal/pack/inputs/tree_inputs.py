"""Inputs from files below a directory, one per sample: the common case, in little memory and a block at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.folder.class_directories import CLASS_FIELD, ClassDirectories
from shoal.formats.rows.tar.member_blocks import laid_out
from shoal.formats.rows.tar.writer import is_safe_name
from shoal.formats.shard_format import Sample
from shoal.formats.writing.encoder import RecordBlock
from shoal.pack.inputs.duplicates import Dedup, Distinct, Duplicates, distinct_keys
from shoal.pack.inputs.file_samples import (
    ROW_BYTES,
    FileSamples,
    class_codes,
    columns_of_files,
    fields_beside,
    is_tar,
    labels_of,
    name_of,
    refuse_collisions,
    refuse_taken,
)
from shoal.pack.inputs.input_table import TAR_BLOCK, InputTable
from shoal.pack.inputs.repeats import MARK, refuse_copies
from shoal.pack.inputs.sample_fields import FieldSets, sets_of_fields
from shoal.pack.shards.shard_writer import Shard, Unreadable
from shoal.storage.files.small_files import FileList, FileTree, read_tree_into

_BLOCK_BYTES = 1 << 20
_SHARD_SUFFIXES = (b".tar", b".parquet", b".arrow", b".mds", b".tfrecord", b".rec", b".tar.gz", b".tar.zst")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _TreeInputs(InputTable):
    """Files below a directory, one per sample."""

    classes: tuple[str, ...] = ()
    files: FileTree

    def __len__(self) -> int:
        return len(self.files)

    def key(self, number: int) -> str:
        return name_of(_name(self.files, number))[0]

    def field_sets(self) -> FieldSets:
        return sets_of_fields(name_of(part.decode("utf-8", "surrogateescape"))[1] for part in self.files.last_parts())

    def record_bytes(self) -> NDArray[np.int64]:
        if is_tar(self.format):
            return _tar_bytes(self.files.num_bytes, labelled=self.label is not None)
        return np.maximum(self.files.num_bytes, 0) + _key_bytes(self.files) + ROW_BYTES

    def content_bytes(self) -> NDArray[np.int64]:
        return self.files.num_bytes

    def without(self, distinct: Distinct, by: Dedup) -> _TreeInputs:
        duplicates = distinct.counted(by, partial(_name, self.files))
        label = None if self.label is None else self.label[distinct.kept]
        return replace(self, files=self.files.take(distinct.kept), label=label, duplicates=duplicates)

    def labels(self, key: str) -> Sequence[str | None]:
        return labels_of(key, self.label, self.classes)

    def samples(self, numbers: NDArray[np.int64], copies: NDArray[np.int64]) -> TreeSamples:
        label = None if self.label is None else self.label[numbers]
        return TreeSamples(self.files.take(numbers), self.format, copies, label, self.classes)

    def digest(self) -> str:
        files = self.files
        digest = hashlib.blake2b("\0".join(files.directories).encode("utf-8", "surrogateescape"), digest_size=16)
        digest.update(files.joined)
        for column in (files.first_file, files.num_bytes, files.modified_ns, self.label):
            digest.update(b"" if column is None else column.tobytes())
        digest.update(repr((self.format, self.classes)).encode())
        return digest.hexdigest()

    def refuse_copies(self, times: NDArray[np.int64]) -> None:
        if MARK.encode() in self.files.joined:
            refuse_copies([name_of(name)[0] for name in self.files.names()], times)

    def options(self, *, skips: bool) -> dict[str, Any]:
        return columns_of_files(self.format, fields=["data"], labelled=self.label is not None, skips=skips)


@dataclass(frozen=True, slots=True, eq=False)
class TreeSamples:
    """Samples of some files: one by one, or in `blocks` of tar records."""

    files: FileTree
    format: str
    copies: NDArray[np.int64]
    label: NDArray[np.int32] | None
    classes: tuple[str, ...]

    def __iter__(self) -> Iterator[Sample | Unreadable]:
        files, names = self.files, self.files.names()
        named = [name_of(name) for name in names]
        return iter(
            FileSamples(
                files=FileList(files.root, names, files.num_bytes, files.modified_ns),
                format=self.format,
                keys=[key for key, _ in named],
                fields=[suffix for _, suffix in named],
                counts=[1] * len(names),
                copies=self.copies.tolist(),
                label=self.label,
                classes=self.classes,
            )
        )

    def part(self, start: int, stop: int) -> TreeSamples:
        """Return the samples ``[start, stop)``."""
        label = None if self.label is None else self.label[start:stop]
        return TreeSamples(self.files.part(start, stop), self.format, self.copies[start:stop], label, self.classes)

    def blocks(self, shard: Shard) -> Iterator[Sample | Unreadable | RecordBlock]:
        """Yield the samples; for a tar as record blocks of about 1 MiB, in a third of the time.

        Samples of an unusual block come one by one, and raise their errors.
        """
        known = {"length"} if self.label is None else {"length", CLASS_FIELD}
        if shard.format != "tar" or not {column.path for column in shard.columns} <= known:
            yield from self
            return
        ends = np.cumsum(_tar_bytes(self.files.num_bytes, labelled=self.label is not None))
        start = 0
        while start < len(self.files):
            before = int(ends[start - 1]) if start else 0
            stop = min(len(ends), int(np.searchsorted(ends, before + _BLOCK_BYTES)) + 1)
            part = self.part(start, stop)
            try:
                block = _block_of(part)
            except MemoryError:  # reading samples one by one finds the file
                block = None
            if block is None:
                yield from part
            else:
                yield block
            start = stop


def tree_inputs(
    files: FileTree,
    *,
    format: str,  # noqa: A002  # the word of the public interface
    classes: ClassDirectories | None = None,
    left_out: tuple[tuple[str, str], ...] = (),
    distinct: bool = False,
) -> _TreeInputs:
    """Make inputs from files, one per sample; ``classes`` contain all files, and ``left_out`` has excluded files.

    ``distinct`` leaves out files with the key of an earlier file. Raises `UsageError` if there are no files, or two
    files would have the same name in a shard.
    """
    if not len(files):
        raise UsageError(f"{files.root}: there are no files to pack", hint="hidden files are left out")
    duplicates = Duplicates("key", 0, ()) if distinct else None
    if not _surely_apart(files):
        names = files.names()
        keys = [name_of(name)[0] for name in names]
        if distinct:
            firsts = distinct_keys(keys)
            files, duplicates = files.take(firsts.kept), firsts.counted("key", names.__getitem__)
        else:
            refuse_collisions(names, keys, None)
    label = class_codes(files.directories, classes)
    if label is not None:
        label = np.repeat(label, np.diff(files.first_file))
    beside, joined = fields_beside(format, labelled=label is not None), files.joined.lower()
    if any(f".{field}\0".encode() in joined for field in beside):
        names = files.names()
        refuse_taken(names, [name_of(name)[1] for name in names], beside)
    known = () if classes is None else classes.names
    return _TreeInputs(files=files, format=format, label=label, classes=known, left_out=left_out, duplicates=duplicates)


def _name(files: FileTree, number: int) -> str:
    return files.part(number, number + 1).names()[0]


def shard_suffix(inputs: InputTable) -> str | None:
    """Return the suffix of all files if it is a suffix of shards: each shard would become a single sample."""
    parts = inputs.files.last_parts() if isinstance(inputs, _TreeInputs) else []
    suffix = next((suffix for suffix in _SHARD_SUFFIXES if parts and parts[0].lower().endswith(suffix)), None)
    return suffix.decode() if suffix and all(part.lower().endswith(suffix) for part in parts) else None


def _surely_apart(files: FileTree) -> bool:
    """Return True if no two samples have the same key: all names have one dot and one suffix, or key hashes differ."""
    joined = files.joined
    suffix = joined[: joined.index(b"\0") + 1].rpartition(b".")[2]
    if joined.count(b".") == joined.count(b"." + suffix) == len(files):
        return True
    seen = np.fromiter((hash(name_of(name)[0]) for name in files.names()), dtype=np.int64, count=len(files))
    seen.sort()
    return bool((seen[1:] != seen[:-1]).all())


def _one_dot_each(files: FileTree) -> bool:
    """Return True if each last part of a name has exactly one dot, neither first nor last."""
    dots = _dots_in(files)
    if len(dots) != len(files):
        return False
    return bool(((dots > files.starts[:-1]) & (dots < files.starts[1:] - 2)).all())


def _key_bytes(files: FileTree) -> NDArray[np.int64]:
    """Return the length of each key, a name up to its last dot if there is one; shape (num_files,)."""
    dots = _dots_in(files)
    begins, ends = files.starts[:-1], files.starts[1:] - 1
    last = np.concatenate([[-1], dots])[np.searchsorted(dots, ends)]
    directories = np.array([len(directory) for directory in files.directories], dtype=np.int64)
    own: NDArray[np.int64] = np.where(last >= begins, last, ends) - begins
    return own + np.repeat(directories, np.diff(files.first_file))


def _dots_in(files: FileTree) -> NDArray[np.int64]:
    return np.flatnonzero(np.frombuffer(files.joined, dtype=np.uint8) == ord("."))


def _tar_bytes(num_bytes: NDArray[np.int64], *, labelled: bool) -> NDArray[np.int64]:
    """Return the bytes of each file in a tar: a header and padded data, and two more blocks for its class."""
    padded = -(-np.maximum(num_bytes, 0) // TAR_BLOCK) * TAR_BLOCK
    return padded + TAR_BLOCK * (3 if labelled else 1)


def _block_of(samples: TreeSamples) -> RecordBlock | None:
    """Return all samples as one block; None if that is not possible."""
    names = None if bool((samples.files.num_bytes < 0).any()) else _member_names(samples)
    if names is None:
        return None
    sizes, digits = samples.files.num_bytes, None
    columns = {"length": sizes}
    if samples.label is not None:
        digits = [b"%d" % code for code in samples.label.tolist()]
        lengths = np.array([len(text) for text in digits], dtype=np.int64)
        columns = {"length": sizes + lengths, CLASS_FIELD: samples.label.astype(np.int64)}
        sizes = np.stack([sizes, lengths], axis=1).ravel()
        names = [name for own in names for name in (own, own[: own.rindex(b".")] + b".cls")]
    block = laid_out(names, sizes)
    if block is None:
        return None
    members_each = 1 if digits is None else 2
    offsets = block.payloads.tolist()
    if not read_tree_into(samples.files, memoryview(block.data), offsets[::members_each]):
        return None
    for offset, text in zip(offsets[1::2], digits or (), strict=False):
        block.data[offset : offset + len(text)] = text
    return replace(block.records(members_each=members_each), columns=columns)


def _member_names(samples: TreeSamples) -> list[bytes] | None:
    """Return the names of members; None if `TarEncoder` must check them."""
    joined = samples.files.joined
    if b".__" in joined or (samples.label is not None and b".cls" in joined.lower()) or b".length\0" in joined.lower():
        return None
    try:
        text = joined.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if not text.replace("\0", "").isprintable():
        return None
    for directory in samples.files.directories:
        if not is_safe_name(f"{directory}x") or not directory.isprintable() or directory[:2] == "__":
            return None
        if not directory and (text[:2] == "__" or "\0__" in text):
            return None
    parts = text.split("\0")[:-1]
    if text != text.lower() or not _one_dot_each(samples.files):
        parts = [".".join(name_of(part)) for part in parts]
    for number in np.flatnonzero(samples.copies).tolist():
        stem, _, suffix = parts[number].rpartition(".")
        parts[number] = f"{stem}~{samples.copies[number] + 1}.{suffix}"
    borders = samples.files.first_file.tolist()
    try:
        return [
            (directory + part).encode()
            for run, directory in enumerate(samples.files.directories)
            for part in parts[borders[run] : borders[run + 1]]
        ]
    except UnicodeEncodeError:
        return None
