"""Inputs from files: one or several files per sample, listed in a manifest or grouped by name."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.folder.class_directories import ClassDirectories
from shoal.hints import did_you_mean
from shoal.pack.inputs.duplicates import Dedup, Distinct, Duplicates, distinct_keys
from shoal.pack.inputs.file_samples import (
    ROW_BYTES,
    FileSamples,
    class_codes,
    columns_of_files,
    fields_beside,
    grouped_name,
    is_tar,
    labels_of,
    name_of,
    refuse_collisions,
    refuse_taken,
    shown,
)
from shoal.pack.inputs.input_table import TAR_BLOCK, InputTable
from shoal.pack.inputs.repeats import refuse_copies
from shoal.pack.inputs.sample_fields import FieldSets, sets_of_fields
from shoal.storage.cache_directory import expand_home
from shoal.storage.files.small_files import FileList, stat_files
from shoal.storage.sources.local_patterns import local_path
from shoal.storage.urls import scheme_of, without_secrets
from shoal.stream.open_dataset import open_dataset

MANIFEST_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
_TYPED = (".jsonl", ".ndjson", ".parquet")
_MEDIA = ("image", "audio", "video")
_PATH_COLUMNS = ("path", "file", "file_name", "filename", "file_path", "filepath", "image_path", *_MEDIA)
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_OWN_FIELDS = {"tar": (), "jsonl": ("key", "text")}  # samples of other formats have a key and data


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _FileInputs(InputTable):
    """Inputs from files, one or several per sample.

    ``first_file``, shape (num_inputs + 1,): input ``i`` has the files ``[first_file[i], first_file[i + 1])``. ``keys``
    and ``fields`` name samples and files; ``extra`` has further fields of each sample. If ``grouped``, the suffix of
    each file is its field.
    """

    classes: tuple[str, ...] = ()
    files: FileList
    keys: Sequence[str]
    fields: Sequence[str]
    first_file: NDArray[np.int64]
    extra: Sequence[Mapping[str, Any]] = ()
    grouped: bool = False

    def __len__(self) -> int:
        return len(self.keys)

    def key(self, number: int) -> str:
        return self.keys[number]

    def field_sets(self) -> FieldSets:
        borders = self.first_file.tolist()
        return sets_of_fields(tuple(sorted(set(self.fields[first:end]))) for first, end in pairwise(borders))

    def record_bytes(self) -> NDArray[np.int64]:
        sizes = np.maximum(self.files.num_bytes, 0)
        own = np.array([_text_bytes(extra) for extra in self.extra] or [0] * len(self), dtype=np.int64)
        if is_tar(self.format):
            sizes = -(-sizes // TAR_BLOCK) * TAR_BLOCK + TAR_BLOCK
            own = -(-own // TAR_BLOCK) * TAR_BLOCK + (TAR_BLOCK if self.extra else 0)
            own += 0 if self.label is None else 2 * TAR_BLOCK
        else:
            own += np.array([len(key) for key in self.keys], dtype=np.int64) + ROW_BYTES
        return own + np.add.reduceat(sizes, self.first_file[:-1])

    def content_bytes(self) -> NDArray[np.int64]:
        sizes: NDArray[np.int64] = np.add.reduceat(self.files.num_bytes, self.first_file[:-1])
        return sizes

    def without(self, distinct: Distinct, by: Dedup) -> _FileInputs:
        kept = distinct.kept
        files, fields = self._files_of(kept)
        return replace(
            self,
            files=files,
            keys=[self.keys[number] for number in kept.tolist()],
            fields=fields,
            first_file=np.concatenate([[0], np.cumsum(np.diff(self.first_file)[kept])]).astype(np.int64),
            label=None if self.label is None else self.label[kept],
            extra=[self.extra[number] for number in kept.tolist()] if self.extra else (),
            duplicates=distinct.counted(by, lambda number: shown(self.files.names[int(self.first_file[number])])),
        )

    def labels(self, key: str) -> Sequence[str | None]:
        if self.extra and key in self.extra[0]:
            return [None if extra[key] is None else str(extra[key]) for extra in self.extra]
        return labels_of(key, self.label, self.classes, self.extra[0] if self.extra else ())

    def _files_of(self, numbers: NDArray[np.int64]) -> tuple[FileList, list[str]]:
        """Return the files of some inputs, and their fields."""
        counts = np.diff(self.first_file)[numbers]
        ends = np.cumsum(counts)
        files = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(
            self.first_file[numbers] - ends + counts, counts
        )
        chosen, known = files.tolist(), self.files
        names = [known.names[number] for number in chosen]
        listed = FileList(known.root, names, known.num_bytes[files], known.modified_ns[files])
        return listed, [self.fields[number] for number in chosen]

    def samples(self, numbers: NDArray[np.int64], copies: NDArray[np.int64]) -> FileSamples:
        files, fields = self._files_of(numbers)
        return FileSamples(
            files=files,
            format=self.format,
            keys=[self.keys[number] for number in numbers.tolist()],
            fields=fields,
            counts=np.diff(self.first_file)[numbers].tolist(),
            copies=copies.tolist(),
            label=None if self.label is None else self.label[numbers],
            classes=self.classes,
            extra=[self.extra[number] for number in numbers.tolist()] if self.extra else (),
            grouped=self.grouped,
        )

    def digest(self) -> str:
        digest = hashlib.blake2b("\0".join(self.files.names).encode("utf-8", "surrogateescape"), digest_size=16)
        for column in (self.files.num_bytes, self.files.modified_ns, self.first_file, self.label):
            digest.update(b"" if column is None else column.tobytes())
        rest = (self.format, self.classes, self.grouped, [list(extra.items()) for extra in self.extra])
        digest.update(repr(rest).encode())
        return digest.hexdigest()

    def column_path(self, name: str) -> str:
        # A manifest's column may be nested: meta.lang is inside meta.
        columns = self.extra[0] if self.extra and is_tar(self.format) else ()
        is_known = any(name == column or name.startswith(f"{column}.") for column in columns)
        return f"json.{name}" if is_known else name

    def refuse_copies(self, times: NDArray[np.int64]) -> None:
        refuse_copies(self.keys, times)

    def options(self, *, skips: bool) -> dict[str, Any]:
        fields, labelled = self.fields if self.grouped else ["data"], self.label is not None
        return columns_of_files(self.format, fields=fields, labelled=labelled, extra=self.extra, skips=skips)


def file_inputs(
    files: FileList,
    *,
    format: str,  # noqa: A002  # the word of the public interface
    grouped: bool = False,
    classes: ClassDirectories | None = None,
    left_out: tuple[tuple[str, str], ...] = (),
    distinct: bool = False,
) -> _FileInputs:
    """Make one input per file; if ``grouped``, make one input of all files whose names are equal up to their first dot.

    ``classes`` contain all files; ``left_out`` has excluded files. ``distinct`` counts 0 duplicates, since equal names
    are one sample. Raises `UsageError` if there are no files, or two files would have the same name in a shard.
    """
    if not files.names:
        raise UsageError(f"{files.root}: there are no files to pack", hint="hidden files are left out")
    named = [grouped_name(name) if grouped else name_of(name) for name in files.names]
    if grouped:
        order = sorted(range(len(named)), key=lambda number: (named[number][0], number))
        files = FileList(files.root, [files.names[i] for i in order], files.num_bytes[order], files.modified_ns[order])
        named = [named[i] for i in order]
    keys, fields = [key for key, _ in named], [suffix for _, suffix in named]
    refuse_collisions(files.names, keys, fields if grouped else None)
    starts = [i for i in range(len(keys)) if not grouped or i == 0 or keys[i] != keys[i - 1]]
    first_file = np.array([*starts, len(keys)], dtype=np.int64)
    keys = [keys[start] for start in starts]
    label = class_codes(keys, classes)
    refuse_taken(files.names, fields, fields_beside(format, labelled=label is not None, grouped=grouped))
    return _FileInputs(
        files=files, format=format, keys=keys, fields=fields, first_file=first_file, label=label,
        classes=() if classes is None else classes.names, grouped=grouped, left_out=left_out,
        duplicates=Duplicates("key", 0, ()) if distinct else None,
    )  # fmt: skip


def _text_bytes(values: Mapping[str, Any]) -> int:
    return sum(len(value) + 8 if isinstance(value, str | bytes) else 16 for value in values.values())


def manifest_inputs(
    manifest: str,
    *,
    format: str,  # noqa: A002  # the word of the public interface
    path_column: str | None = None,
    distinct: bool = False,
) -> InputTable:
    """Make one input of each row of a table of paths: CSV, JSON Lines, Parquet, or any row format that can be opened.

    An input is the file at a row's path, relative to the manifest, and the row's other columns: in tar shards as the
    field ``json``, elsewhere each as a field. The path itself goes into no shard. ``distinct`` leaves out rows with the
    key of an earlier row. Raises `UsageError` if a path is missing, or two rows would have the same name in a shard.
    """
    rows = [dict(row) for row in open_dataset(manifest).partition(rank=0, world_size=1)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    column = path_column or next((name for name in _PATH_COLUMNS if name in names), None)
    if column is None or column not in names:
        what = f"of paths ({', '.join(_PATH_COLUMNS)})" if column is None else repr(column)
        msg = f"{manifest}: there is no column {what} among {', '.join(names)}"
        hint = "path_column= names the paths; if rows are samples, `shoal repack SRC DST --to FORMAT` packs them"
        raise UsageError(msg, hint=did_you_mean(column, names) + hint)
    root = str(Path(expand_home(manifest)).absolute().parent)
    paths = [_relative(row.get(column), root, manifest, number) for number, row in enumerate(rows)]
    duplicates = None
    if distinct:
        first_rows = distinct_keys(name_of(_name_in_keys(path))[0] for path in paths)
        duplicates = first_rows.counted("key", lambda number: f"row {number} ({shown(paths[number])})")
        rows, paths = ([values[number] for number in first_rows.kept.tolist()] for values in (rows, paths))
    seen: dict[str, int] = {}
    for number, path in enumerate(paths):
        if (before := seen.setdefault(path, number)) != number:
            msg = f"{manifest}: rows {before} and {number} name the same file, {path.rpartition('/')[2]!r}"
            hint = "a file is one sample: join the rows, or give one of them a copy or a link"
            raise UsageError(msg, hint=hint)
    others = [name for name in names if name != column]
    own = _OWN_FIELDS.get(format.partition(".")[0], ("key", "data"))
    if taken := [name for name in others if name in own]:
        msg = f"{manifest}: the column {taken[0]!r} has the name of a field that every sample has"
        raise UsageError(msg, hint="rename it")
    has_types = manifest.lower().endswith(_TYPED)
    columns = [(_plain if has_types else _typed)([row.get(name) for row in rows]) for name in others]
    extra = [dict(zip(others, values, strict=True)) for values in zip(*columns, strict=True)]
    files = stat_files(root, paths)
    named = list(map(_name_in_keys, paths))
    keyed = file_inputs(FileList(root, named, files.num_bytes, files.modified_ns), format=format)
    refuse_taken(paths, keyed.fields, fields_beside(format, extra=bool(others)))
    return replace(keyed, files=files, extra=extra, duplicates=duplicates)


def _name_in_keys(path: str) -> str:
    """Return the path for use in keys; for a path outside the manifest's directory, only its last part."""
    return path.rpartition("/")[2] if path[:1] == "/" or ".." in path.split("/") else path


def _relative(value: Any, root: str, manifest: str, row: int) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        msg = f"{manifest}: row {row} has {value!r:.80} where a path should be"
        raise UsageError(msg, hint="every row names one file")
    value = local_path(value)
    if scheme_of(value):
        msg = f"{manifest}: row {row} names {without_secrets(value)}, but a manifest names files of this machine only"
        hint = "`shoal repack URL DST --format folder` packs files that lie elsewhere; or copy them and name the copies"
        raise UsageError(msg, hint=hint)
    path = Path(expand_home(value))
    if path.is_absolute() and not path.is_relative_to(root):
        return str(path)
    return (path.relative_to(root) if path.is_absolute() else path).as_posix()


def _typed(values: list[Any]) -> list[Any]:
    """Convert the strings of a column to numbers if all of them are numbers."""
    for kind in (int, float):
        numbers = [_number(value, kind) for value in values]
        if None not in numbers:
            return numbers
    return values


def _plain(values: list[Any]) -> list[Any]:
    """Convert numpy values of a typed column to plain Python values."""
    return [value.tolist() if isinstance(value, np.ndarray | np.generic) else value for value in values]


def _number(text: Any, kind: type[int | float]) -> int | float | None:
    # "007" and "1_000" stay strings.
    match = _NUMBER.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    try:
        number = kind(text)
    except ValueError:
        return None
    # A conversion to float must neither change an integer nor produce an infinity.
    is_whole = match[2] is None and match[3] is None
    is_same = isinstance(number, int) or (int(text) == number if is_whole else math.isfinite(number))
    return number if is_same else None
