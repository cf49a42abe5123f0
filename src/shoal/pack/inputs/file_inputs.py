"""Tables of inputs to pack, any of which can be read by number, in this or another process."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shoal.errors import StorageError, UsageError
from shoal.formats.shard_format import Sample
from shoal.formats.tar.header_fields import padded
from shoal.formats.tar.names import key_and_suffix
from shoal.pack.inputs.file_samples import columns_of_files, fields_beside, maker_of
from shoal.pack.inputs.repeats import copy_of, refuse_copies
from shoal.pack.inputs.sample_fields import FieldSets, sets_of_fields
from shoal.pack.shard_writer import Unreadable
from shoal.storage.files.small_files import FileList, read_small

_HEADER_BYTES = 512
_ROW_BYTES = 64  # overhead of a record beyond its payload: names, lengths, checksums


class InputTable(Protocol):
    """Inputs by number."""

    def __len__(self) -> int:
        """Return the number of inputs."""
        ...

    def record_bytes(self) -> NDArray[np.int64]:
        """Return the approximate bytes of each input in a shard; shape (len,)."""
        ...

    def labels(self, key: str) -> Sequence[str | None]:
        """Return the value of ``key`` of each input, as text; raises `UsageError` if inputs have none."""
        ...

    def key(self, number: int) -> str:
        """Return the name of an input for messages."""
        ...

    def field_sets(self) -> FieldSets | None:
        """Return the fields of each input by the suffixes of its files; None if inputs are not files."""
        ...

    @property
    def left_out(self) -> tuple[tuple[str, str], ...]:
        """Inputs dropped for lack of a required field: names and reasons."""
        ...

    def samples(self, numbers: NDArray[np.int64], copies: NDArray[np.int64]) -> Iterable[Sample | Unreadable]:
        """Return the samples of these inputs, in this order, read lazily; the result can be pickled.

        ``copies`` is the copy number of each, from 0.
        """
        ...

    def digest(self) -> str:
        """Return a digest that is equal for equal inputs: names, sizes, times."""
        ...

    def about(self) -> Mapping[str, Any]:
        """Return what the inputs add to the metadata of the index."""
        ...

    def label_column(self) -> str | None:
        """Return the field of a sample that holds its class; None if there is none."""
        ...

    def column_path(self, name: str) -> str:
        """Return the path in a sample of a value that the inputs know by this name."""
        ...

    def refuse_copies(self, times: NDArray[np.int64]) -> None:
        """Raise `UsageError` if a copy would get the key of another input, given how often each is packed."""
        ...

    def options(self, *, skips: bool) -> dict[str, Any]:
        """Return format options that give all shards the columns of all samples.

        Raises `UsageError` if no columns hold all samples, unless ``skips``: then samples that do not fit are left out.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class FileInputs:
    """Inputs from files, one or several of which make a sample.

    ``first_file``, shape (num_inputs + 1,): input ``i`` has the files ``[first_file[i], first_file[i + 1])`` of
    ``files``. ``keys`` and ``fields`` name samples and files; ``label``, int32, is a class of ``classes`` or -1.
    ``extra`` has further fields of each sample. If ``grouped``, each file is a field named by its suffix.
    """

    files: FileList
    format: str
    keys: Sequence[str]
    fields: Sequence[str]
    first_file: NDArray[np.int64]
    label: NDArray[np.int32] | None = None
    classes: tuple[str, ...] = ()
    extra: Sequence[Mapping[str, Any]] = field(default=())
    grouped: bool = False
    left_out: tuple[tuple[str, str], ...] = ()

    def __len__(self) -> int:
        return len(self.keys)

    def key(self, number: int) -> str:
        """Return the key of the sample."""
        return self.keys[number]

    def field_sets(self) -> FieldSets:
        """Return the fields of each input, by the suffixes of its files."""
        borders = self.first_file.tolist()
        return sets_of_fields(tuple(sorted(set(self.fields[first:end]))) for first, end in pairwise(borders))

    def record_bytes(self) -> NDArray[np.int64]:
        """Compute record sizes from the sizes of files, and the overhead of a record."""
        sizes = np.maximum(self.files.num_bytes, 0)
        if self.format.partition(".")[0] == "tar":
            blocks = (sizes + 511) // 512 * 512 + _HEADER_BYTES
            found = np.add.reduceat(blocks, self.first_file[:-1]) if len(self) else blocks
            return found + (2 * _HEADER_BYTES if self.label is not None else 0) + self._extra_bytes()
        keys = np.array([len(key) for key in self.keys], dtype=np.int64)
        found = np.add.reduceat(sizes, self.first_file[:-1]) if len(self) else sizes
        return found + keys + _ROW_BYTES + self._extra_bytes()

    def _extra_bytes(self) -> NDArray[np.int64]:
        if not self.extra:
            return np.zeros(len(self), dtype=np.int64)
        sizes = [sum(map(_text_bytes, extra.values())) for extra in self.extra]
        if self.format.partition(".")[0] == "tar":
            sizes = [_HEADER_BYTES + padded(size) for size in sizes]
        return np.array(sizes, dtype=np.int64)

    def labels(self, key: str) -> Sequence[str | None]:
        """Return the class, or the column of the manifest with this name."""
        if self.extra and key in self.extra[0]:
            return [None if extra[key] is None else str(extra[key]) for extra in self.extra]
        if key in ("label", "class", "cls") and self.label is not None:
            return [self.classes[code] if code >= 0 else None for code in self.label.tolist()]
        known = [*(self.extra[0] if self.extra else ()), *(["label"] if self.label is not None else [])]
        msg = f"the inputs have no {key!r}; they have {', '.join(known) or 'nothing but their names'}"
        raise UsageError(msg, hint="classes are the directories in which files lie, or columns of a manifest")

    def samples(self, numbers: NDArray[np.int64], copies: NDArray[np.int64]) -> FileSamples:
        """Return the samples of these inputs."""
        counts = np.diff(self.first_file)[numbers]
        ends = np.cumsum(counts)
        files = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(
            self.first_file[numbers] - (ends - counts), counts
        )
        chosen = files.tolist()
        return FileSamples(
            root=self.files.root,
            format=self.format,
            keys=[self.keys[number] for number in numbers.tolist()],
            copies=copies.tolist(),
            counts=counts.tolist(),
            names=[self.files.names[number] for number in chosen],
            fields=[self.fields[number] for number in chosen],
            num_bytes=self.files.num_bytes[files].tolist(),
            modified_ns=self.files.modified_ns[files].tolist(),
            labels=[-1] * len(numbers) if self.label is None else self.label[numbers].tolist(),
            classes=self.classes,
            extra=[self.extra[number] for number in numbers.tolist()] if self.extra else None,
            grouped=self.grouped,
        )

    def digest(self) -> str:
        """Return a digest of the names, sizes and times of all files, and of all other attributes."""
        found = hashlib.blake2b(digest_size=16)
        found.update("\0".join(self.files.names).encode("utf-8", "surrogateescape"))
        for column in (self.files.num_bytes, self.files.modified_ns, self.first_file, self.label):
            found.update(b"" if column is None else column.tobytes())
        found.update(
            repr((self.format, self.classes, self.grouped, [list(extra.items()) for extra in self.extra])).encode()
        )
        return found.hexdigest()

    def about(self) -> Mapping[str, Any]:
        """Return the class names."""
        return {"classes": list(self.classes)} if self.classes else {}

    def label_column(self) -> str | None:
        """Return ``cls`` for tar shards, else ``label``; None without classes."""
        if self.label is None:
            return None
        return label_field(self.format)

    def column_path(self, name: str) -> str:
        """Map ``label`` to the class, and in tar shards columns of a manifest to paths in the field ``json``."""
        is_tar = self.format.partition(".")[0] == "tar"
        if name == "label" and self.label is not None:
            return self.label_column() or name
        if not is_tar or not self.extra:
            return name
        # A manifest's column may be nested: meta.lang is inside meta.
        known = any(name == column or name.startswith(f"{column}.") for column in self.extra[0])
        return f"json.{name}" if known else name

    def refuse_copies(self, times: NDArray[np.int64]) -> None:
        """Call `shoal.pack.inputs.repeats.refuse_copies` for the keys of all inputs."""
        refuse_copies(self.keys, times)

    def options(self, *, skips: bool) -> dict[str, Any]:
        """Return the columns of tables: files (by suffix if grouped) and the columns of the manifest."""
        fields = self.fields if self.grouped else ["data"]
        labelled = self.label is not None
        return columns_of_files(self.format, fields=fields, labelled=labelled, extra=self.extra, skips=skips)


@dataclass(frozen=True, slots=True, eq=False)
class FileSamples:
    """Samples of some inputs, read one by one."""

    root: str
    format: str
    keys: Sequence[str]
    copies: Sequence[int]
    counts: Sequence[int]
    names: Sequence[str]
    fields: Sequence[str]
    num_bytes: Sequence[int]
    modified_ns: Sequence[int]
    labels: Sequence[int]
    classes: tuple[str, ...]
    extra: Sequence[Mapping[str, Any]] | None
    grouped: bool = False

    def __iter__(self) -> Iterator[Sample | Unreadable]:
        if self.extra is None and self.format.partition(".")[0] == "tar" and len(self.keys) == len(self.names):
            return self._single_members()
        return self._all_kinds()

    def _single_members(self) -> Iterator[Sample | Unreadable]:
        """Yield samples of the common case, one file per tar sample, in a third of the time of `_all_kinds`."""
        directory = f"{self.root.rstrip('/')}/"
        classes = [b"%d" % label for label in range(len(self.classes))]
        for key, copy, name, suffix, num_bytes, modified_ns, label in zip(
            self.keys, self.copies, self.names, self.fields, self.num_bytes, self.modified_ns, self.labels, strict=True
        ):
            path = directory + name if name[0] != "/" else name
            try:
                data = read_small(path, num_bytes, modified_ns)
            except StorageError as raised:
                yield _unreadable(name, path, raised)
                continue
            sample = {"__key__": f"{key}~{copy + 1}" if copy else key, suffix: data}
            if label >= 0:
                sample["cls"] = classes[label]
            yield sample

    def _all_kinds(self) -> Iterator[Sample | Unreadable]:
        make = maker_of(self.format)
        at, directory = 0, f"{self.root.rstrip('/')}/"
        for number, (key, copy, count, label) in enumerate(
            zip(self.keys, self.copies, self.counts, self.labels, strict=True)
        ):
            values: dict[str, bytes] = {}
            error: StorageError | None = None
            for place in range(at, at + count):
                name = self.names[place]
                path = name if name[:1] == "/" else directory + name
                try:
                    values[self.fields[place]] = read_small(path, self.num_bytes[place], self.modified_ns[place])
                except StorageError as raised:
                    error = raised
                    yield _unreadable(name, path, raised)
                    break
            at += count
            if error is None:
                extra = self.extra[number] if self.extra is not None else None
                try:
                    sample = make(copy_of(key, copy), values, label, self.classes, extra, grouped=self.grouped)
                except UsageError as refused:
                    yield Unreadable(key, refused, refused.message)
                else:
                    yield sample


def label_field(format: str) -> str:  # noqa: A002
    """Return the field of a sample that holds its class."""
    return "cls" if format.partition(".")[0] == "tar" else "label"


def file_inputs(
    files: FileList,
    *,
    format: str,  # noqa: A002  # the word of the public interface
    grouped: bool = False,
    labelled: bool | None = None,
    left_out: tuple[tuple[str, str], ...] = (),
) -> FileInputs:
    """Make inputs from files: one sample each, or if ``grouped``, one per group of names equal up to their first dot.

    ``labelled`` takes the first directory of a name as the class of its sample; None does so if all names have one.
    ``left_out`` are files that were excluded from packing.

    Raises
    ------
    UsageError
        There are none, or two would have the same name in a shard.
    """
    if not files.names:
        msg = f"{files.root}: there are no files to pack"
        raise UsageError(msg, hint="hidden files are left out")
    order = list(range(len(files.names)))
    named = [grouped_name(name) if grouped else name_of(name) for name in files.names]
    if grouped:
        order.sort(key=lambda number: (named[number][0], number))
        files = FileList(files.root, [files.names[i] for i in order], files.num_bytes[order], files.modified_ns[order])
        named = [named[i] for i in order]
    keys, fields = [key for key, _ in named], [suffix for _, suffix in named]
    refuse_collisions(files.names, keys, fields if grouped else None)
    starts = [i for i in range(len(keys)) if not grouped or i == 0 or keys[i] != keys[i - 1]]
    first_file = np.array([*starts, len(keys)], dtype=np.int64)
    keys = [keys[start] for start in starts]
    label, classes = _classes(keys, labelled)
    refuse_taken(files.names, fields, fields_beside(format, labelled=label is not None, grouped=grouped))
    return FileInputs(files, format, keys, fields, first_file, label, classes, grouped=grouped, left_out=left_out)


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
            both = f"{_shown(names[before])!r} and {_shown(names[number])!r}"
            msg = f"{both} would both be the sample {key!r}" + ("" if fields is None else f", field {fields[number]!r}")
            hint = "rename one of them"
            if fields is None:
                hint += ", or join files that differ in their suffixes alone to one sample with --group"
            raise UsageError(msg, hint=hint)


def refuse_taken(names: Sequence[str], fields: Sequence[str], beside: Mapping[str, str]) -> None:
    """Raise `UsageError` if a file would be a field that its sample gets anyway and that would replace it."""
    if not beside.keys() & set(fields):
        return
    name, field = next(pair for pair in zip(names, fields, strict=True) if pair[1] in beside)
    msg = f"the file {_shown(name)!r} would be the field {field!r} of its sample, which {beside[field]} is already"
    hint = "--no-label packs files without their class (labelled=False in Python)"
    raise UsageError(msg, hint=hint if "class" in beside[field] else "rename it, or pack into another format")


def _classes(keys: Sequence[str], labelled: bool | None) -> tuple[NDArray[np.int32] | None, tuple[str, ...]]:  # noqa: FBT001
    if labelled is False:
        return None, ()
    found = [key.partition("/")[0] if "/" in key else None for key in keys]
    if None in found:
        if labelled:
            msg = f"the sample {keys[found.index(None)]!r} lies in no directory that could be its class"
            raise UsageError(msg, hint="leave out labels with --no-label, or move it into a directory")
        return None, ()
    classes = tuple(sorted({name for name in found if name is not None}))
    places = {name: place for place, name in enumerate(classes)}
    return np.array([places[name] for name in found if name is not None], dtype=np.int32), classes


def _unreadable(name: str, path: str, error: StorageError) -> Unreadable:
    """Return an input that cannot be read; raise the error if the cause is not the input (too many open files)."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise error
    return Unreadable(_shown(name), error, error.message.replace(path, _shown(name)))


def _shown(name: str) -> str:
    """Return a name as it may be shown and stored: only the last part of an absolute one."""
    return name.rpartition("/")[2] if name[:1] == "/" else name


def _text_bytes(value: Any) -> int:
    return len(value) + 8 if isinstance(value, str | bytes) else 16
