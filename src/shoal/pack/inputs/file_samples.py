"""Samples from files: names of files give keys, fields and classes; the format of the shards decides the values."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import StorageError, UsageError
from shoal.formats.folder.class_directories import CLASS_FIELD, ClassDirectories
from shoal.formats.rows.tar.names import key_and_suffix
from shoal.formats.shard_format import Sample
from shoal.formats.tables.column_kinds import ColumnKinds, kinds_of_rows, schema_of_kinds
from shoal.formats.writing.written_formats import TABLE_FORMATS
from shoal.pack.inputs.repeats import copy_of
from shoal.pack.shards.shard_writer import Unreadable
from shoal.storage.files.small_files import FileList, read_small
from shoal.storage.storage_errors import link_target

ROW_BYTES = 64
"""Bytes of a record besides its payload, except in tar: names, lengths, checksums."""

_AT_ONCE = 4096  # rows of a manifest


@dataclass(frozen=True, slots=True, eq=False)
class FileSamples:
    """Samples of some inputs, read one by one; the next ``counts[i]`` files belong to sample ``i``."""

    files: FileList
    format: str
    keys: Sequence[str]
    fields: Sequence[str]
    counts: Sequence[int]
    copies: Sequence[int]
    label: NDArray[np.int32] | None
    classes: tuple[str, ...]
    extra: Sequence[Mapping[str, Any]] = ()
    grouped: bool = False

    def __iter__(self) -> Iterator[Sample | Unreadable]:
        labels = [-1] * len(self.keys) if self.label is None else self.label.tolist()
        if not self.extra and is_tar(self.format) and len(self.keys) == len(self.files.names):
            return self._single_members(labels)
        return self._all_kinds(labels)

    def _single_members(self, labels: Sequence[int]) -> Iterator[Sample | Unreadable]:
        """Yield samples of the common case, one file per tar sample, in a third of the time of `_all_kinds`."""
        files, directory = self.files, f"{self.files.root.rstrip('/')}/"
        sizes, times = files.num_bytes.tolist(), files.modified_ns.tolist()
        classes = [b"%d" % label for label in range(len(self.classes))]
        for key, copy, name, suffix, num_bytes, modified_ns, label in zip(
            self.keys, self.copies, files.names, self.fields, sizes, times, labels, strict=True
        ):
            path = directory + name if name[0] != "/" else name
            try:
                data = read_small(path, num_bytes, modified_ns)
            except StorageError as raised:
                yield unreadable_input(name, path, raised)
                continue
            sample = {"__key__": f"{key}~{copy + 1}" if copy else key, suffix: data}
            if label >= 0:
                sample[CLASS_FIELD] = classes[label]
            yield sample

    def _all_kinds(self, labels: Sequence[int]) -> Iterator[Sample | Unreadable]:
        files, directory = self.files, f"{self.files.root.rstrip('/')}/"
        sizes, times = files.num_bytes.tolist(), files.modified_ns.tolist()
        first = 0
        extras: Sequence[Mapping[str, Any]] = self.extra or [{}] * len(self.keys)
        for key, copy, count, label, extra in zip(self.keys, self.copies, self.counts, labels, extras, strict=True):
            values: dict[str, bytes] = {}
            for number in range(first, first + count):
                name = files.names[number]
                path = name if name[:1] == "/" else directory + name
                try:
                    values[self.fields[number]] = read_small(path, sizes[number], times[number])
                except StorageError as raised:
                    yield unreadable_input(name, path, raised)
                    break
            else:
                class_name = self.classes[label] if label >= 0 else ""
                try:
                    yield _sample(self.format, copy_of(key, copy), values, label, class_name, extra, self.grouped)
                except UsageError as refused:
                    yield Unreadable(key, refused, refused.message)
            first += count


def _sample(
    format_name: str,
    key: str,
    values: Mapping[str, bytes],
    label: int,
    class_name: str,
    extra: Mapping[str, Any],
    grouped: bool,  # noqa: FBT001
) -> Sample:
    """Make a sample of files, its class (a label of -1 means none) and further fields.

    In tar, files are unchanged, the class is its number, and further fields are JSON. In other formats, a row has the
    file as ``data`` (grouped files by suffix), and the class as number and name; in JSON Lines, the file is ``text``,
    decoded as UTF-8.
    """
    if is_tar(format_name):
        sample: Sample = {"__key__": key, **values}
        if label >= 0:
            sample[CLASS_FIELD] = b"%d" % label
        if extra:
            sample["json"] = dict(extra)
        return sample
    is_json = format_name.partition(".")[0] == "jsonl"
    row: Sample = {"key": key}
    row |= values if grouped else {"text" if is_json else "data": next(iter(values.values()))}
    if label >= 0:
        row |= {CLASS_FIELD: label, "class": class_name}
    row |= extra
    if is_json:
        for name, value in row.items():
            if isinstance(value, bytes):
                try:
                    row[name] = value.decode("utf-8")
                except UnicodeDecodeError as error:
                    msg = f"{key}: byte {error.start} of the file is not UTF-8, but JSON holds no bytes"
                    raise UsageError(msg, hint="pack into tar, mds, parquet, arrow or tfrecord") from None
    return row


def unreadable_input(name: str, path: str, error: StorageError) -> Unreadable:
    """Return the placeholder of an unreadable input; raise an error with another cause (too many open files)."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise error
    reason = error.message.replace(path, shown(name))
    if (target := link_target(path))[:1] == "/":
        reason = reason.replace(target, shown(target))
    return Unreadable(shown(name), error, reason)


def shown(name: str) -> str:
    """Return a name for messages and records: the last part of an absolute name."""
    return name.rpartition("/")[2] if name[:1] == "/" else name


def name_of(name: str) -> tuple[str, str]:
    """Return key and field of a file that is a sample: the field follows the last dot; other dots become "_"."""
    directory, slash, last = name.rpartition("/")
    stem, dot, suffix = last.rpartition(".")
    if not dot:
        stem, suffix = last, "bin"
    return f"{directory}{slash}{stem.replace('.', '_')}", suffix.lower() or "bin"


def grouped_name(name: str) -> tuple[str, str]:
    """Return key and field of a file that is part of a sample: the field follows the first dot of its name."""
    return key_and_suffix(name) or name_of(name)


def refuse_collisions(names: Sequence[str], keys: Sequence[str], fields: Sequence[str] | None) -> None:
    """Raise `UsageError` if two files would make the same sample, or the same field of a sample."""
    seen: dict[Any, int] = {}
    for number, key in enumerate(keys):
        before = seen.setdefault(key if fields is None else (key, fields[number]), number)
        if before != number:
            both = f"{shown(names[before])!r} and {shown(names[number])!r}"
            msg = f"{both} would both be the sample {key!r}" + ("" if fields is None else f", field {fields[number]!r}")
            hint = "rename one of them"
            if fields is None:
                hint += "; grouped=True joins files that differ in their suffixes alone to one sample"
            raise UsageError(msg, hint=hint)


def fields_beside(
    format_name: str, *, labelled: bool = False, extra: bool = False, grouped: bool = False
) -> dict[str, str]:
    """Return fields besides files that could collide with a file (ungrouped rows call it data), with descriptions."""
    if is_tar(format_name):
        beside = [
            ("__key__", "its key", True),
            (CLASS_FIELD, "its class", labelled),
            ("json", "the row of the manifest", extra),
        ]
    else:
        own_class = grouped and labelled
        beside = [("key", "its key", grouped), (CLASS_FIELD, "its class", own_class), ("class", "its class", own_class)]
    return {field: description for field, description, is_present in beside if is_present}


def refuse_taken(names: Sequence[str], fields: Sequence[str], beside: Mapping[str, str]) -> None:
    """Raise `UsageError` if another field of its sample would replace a file."""
    if not beside.keys() & set(fields):
        return
    name, field = next(pair for pair in zip(names, fields, strict=True) if pair[1] in beside)
    msg = f"the file {shown(name)!r} would be the field {field!r} of its sample, but {beside[field]} has this name"
    hint = "labelled=False packs files without their class"
    raise UsageError(msg, hint=hint if "class" in beside[field] else "rename it, or pack into another format")


def columns_of_files(
    format_name: str, *, fields: Iterable[str], labelled: bool, extra: Sequence[Mapping[str, Any]] = (), skips: bool
) -> dict[str, Any]:
    """Return options that give all shards of tables the columns of all samples, without reading; else empty.

    ``fields`` hold files, ``extra`` has the manifest's columns for each sample. O(samples) with a manifest. Raises
    `UsageError` if no single type holds all values of a column, unless ``skips``.
    """
    if format_name not in TABLE_FORMATS:
        return {}
    row: dict[str, Any] = {
        "key": "",
        **dict.fromkeys(fields, b""),
        **({CLASS_FIELD: 0, "class": ""} if labelled else {}),
    }
    kinds: ColumnKinds = kinds_of_rows({}, [row], first=0, format_name=format_name, skips=False)
    for start in range(0, len(extra), _AT_ONCE):
        rows = [dict(values) for values in extra[start : start + _AT_ONCE]]
        kinds = kinds_of_rows(kinds, rows, first=start, format_name=format_name, skips=skips)
    return {"schema": schema_of_kinds(kinds)}


def is_tar(format_name: str) -> bool:
    """Return True for tar shards, compressed or not."""
    return format_name.partition(".")[0] == "tar"


def class_codes(directories: Sequence[str], classes: ClassDirectories | None) -> NDArray[np.int32] | None:
    """Return the class code of each directory (empty, or with a slash at its end); None without classes."""
    return None if classes is None else np.array(classes.numbers_of(directories), dtype=np.int32)


def labels_of(
    key: str, codes: NDArray[np.int32] | None, classes: Sequence[str], others: Iterable[str] = ()
) -> list[str]:
    """Return the class of each input; `UsageError` if ``key`` is not the class, or there are no classes."""
    if codes is not None and key == CLASS_FIELD:
        return [classes[code] for code in codes.tolist()]
    known = ", ".join([*others, *([CLASS_FIELD] if codes is not None else [])]) or "nothing but their names"
    msg = f"the inputs have no {key!r}; they have {known}"
    raise UsageError(msg, hint="classes are the directories in which files lie, or columns of a manifest")
