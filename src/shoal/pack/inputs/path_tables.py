"""Inputs from manifests, tables of paths: CSV, JSON Lines, Parquet, or any other row format that can be opened."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.hints import did_you_mean
from shoal.pack.inputs.file_inputs import FileInputs, file_inputs, refuse_taken
from shoal.pack.inputs.file_samples import fields_beside
from shoal.storage.cache_directory import expand_home
from shoal.storage.files.small_files import stat_files
from shoal.storage.sources.local_patterns import local_path
from shoal.storage.urls import scheme_of, without_secrets
from shoal.stream.open_dataset import open_dataset

MANIFEST_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
_PATH_COLUMNS = (
    "path",
    "file",
    "file_name",
    "filename",
    "file_path",
    "filepath",
    "image_path",
    "image",
    "audio",
    "video",
)
_TYPED = (".jsonl", ".ndjson", ".parquet")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WHOLE = re.compile("-?[0-9]+")
_OWN = {"tar": (), "jsonl": ("key", "text")}


def manifest_inputs(manifest: str, *, format: str, path_column: str | None = None) -> FileInputs:  # noqa: A002
    """Make one input of each row: the file at its path, relative to the manifest, and the row's other columns.

    In a tar shard these columns are the field ``json``; elsewhere each is a field. The path itself goes into no shard.

    Raises
    ------
    UsageError
        There is no column of paths, a row has none, or two rows would have the same name in a shard.
    """
    rows = [dict(row) for row in open_dataset(manifest).partition(rank=0, world_size=1)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    column = path_column or next((name for name in _PATH_COLUMNS if name in names), None)
    if column is None or column not in names:
        what = f"of paths ({', '.join(_PATH_COLUMNS)})" if column is None else repr(column)
        msg = f"{manifest}: there is no column {what} among {', '.join(names)}"
        raise UsageError(
            msg,
            hint=did_you_mean(column, names)
            + "--path-column says which it is; rows that are samples are packed by `shoal repack`",
        )
    root = str(Path(expand_home(manifest)).absolute().parent)
    paths = [_relative(row.get(column), root, manifest, number) for number, row in enumerate(rows)]
    _refuse_twice(paths, manifest)
    others = [name for name in names if name != column]
    own = _OWN.get(format.partition(".")[0], ("key", "data"))
    if taken := [name for name in others if name in own]:
        msg = f"{manifest}: the column {taken[0]!r} has the name of a field that every sample has"
        raise UsageError(msg, hint="rename it")
    typed = _plain if manifest.lower().endswith(_TYPED) else _typed
    values = {name: typed([row.get(name) for row in rows]) for name in others}
    extra = [{name: values[name][number] for name in others} for number in range(len(rows))] if others else []
    inputs = _keyed(paths, root, format)
    refuse_taken(paths, inputs.fields, fields_beside(format, extra=bool(others)))
    return FileInputs(inputs.files, format, inputs.keys, inputs.fields, inputs.first_file, extra=extra)


def _keyed(paths: Sequence[str], root: str, format: str) -> FileInputs:  # noqa: A002
    """Derive keys from file names; files outside the manifest's directory are named by the last part alone."""
    outside = [path[:1] == "/" or ".." in path.split("/") for path in paths]
    named = [path.rpartition("/")[2] if out else path for path, out in zip(paths, outside, strict=True)]
    files = stat_files(root, paths)
    shown = type(files)(root, named, files.num_bytes, files.modified_ns)
    keyed = file_inputs(shown, format=format, labelled=False)
    return FileInputs(files, format, keyed.keys, keyed.fields, keyed.first_file)


def _relative(value: Any, root: str, manifest: str, row: int) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        msg = f"{manifest}: row {row} has {value!r:.80} where a path should be"
        raise UsageError(msg, hint="every row names one file")
    value = local_path(value)
    if scheme_of(value):
        msg = f"{manifest}: row {row} names {without_secrets(value)}, and the files of a manifest are of this machine"
        hint = "`shoal repack URL DST --format folder` packs files that lie elsewhere; or copy them and name the copies"
        raise UsageError(msg, hint=hint)
    path = Path(expand_home(value))
    try:
        return path.relative_to(root).as_posix() if path.is_absolute() else path.as_posix()
    except ValueError:
        return str(path)


def _refuse_twice(paths: Sequence[str], manifest: str) -> None:
    seen: dict[str, int] = {}
    for row, path in enumerate(paths):
        before = seen.setdefault(path, row)
        if before != row:
            msg = f"{manifest}: rows {before} and {row} name the same file, {path.rpartition('/')[2]!r}"
            raise UsageError(
                msg, hint="a file is one sample: join what the rows say, or give one of them a copy or a link"
            )


def _typed(values: list[Any]) -> list[Any]:
    """Convert the strings of a column to numbers if all of them are numbers."""
    for kind in (int, float):
        found = [_number(value, kind) for value in values]
        if None not in found:
            return found
    return values


def _plain(values: list[Any]) -> list[Any]:
    """Convert numpy values of a column that already has types to plain Python values."""
    return [value.tolist() if isinstance(value, np.ndarray | np.generic) else value for value in values]


def _number(text: Any, kind: type[int | float]) -> int | float | None:
    # "007" and "1_000" stay strings.
    if not isinstance(text, str) or not _NUMBER.fullmatch(text):
        return None
    try:
        number = kind(text)
    except ValueError:
        return None
    # Conversion to float must not change a number written as an integer, nor produce an infinity.
    is_same = not isinstance(number, float) or (
        int(text) == number if _WHOLE.fullmatch(text) else math.isfinite(number)
    )
    return number if is_same else None
