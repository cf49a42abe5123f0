"""Inputs from a dataset of Hugging Face's ``save_to_disk``: Arrow shards and their description."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import SourceError, UsageError
from shoal.formats.shard_format import Sample
from shoal.formats.tables.arrow_types import arrow_library
from shoal.hints import did_you_mean, pointer_in
from shoal.pack.from_shards.new_schemas import options_like
from shoal.pack.inputs.duplicates import Dedup, Distinct
from shoal.pack.inputs.file_samples import is_tar
from shoal.pack.inputs.input_table import InputTable
from shoal.pack.inputs.repeats import copy_of
from shoal.pack.output.output_names import plan_of
from shoal.pack.shards.shard_writer import Unreadable
from shoal.storage.cache_directory import expand_home
from shoal.storage.files.local_store import LocalStore
from shoal.stream.dataset import Dataset
from shoal.stream.open_dataset import open_dataset

_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
_HEADER_BYTES = 1024
_FILE = {"bytes", "path"}
# First bytes of files, to name members of tar shards by their type.
_BEGINNINGS = ((b"\xff\xd8\xff", "jpg"), (b"\x89PNG", "png"), (b"GIF8", "gif"), (b"fLaC", "flac"), (b"ID3", "mp3"))


def is_dataset_on_disk(path: str) -> bool:
    """Return True if ``save_to_disk`` has written the directory."""
    return any((Path(path) / name).is_file() for name in (_STATE, _SPLITS))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _DatasetInputs(InputTable):
    """Rows of a dataset; ``rows`` has the row of each input, None for all rows. Classes are columns of the rows."""

    classes: Mapping[str, Sequence[str]]
    paths: tuple[str, ...]
    num_samples: int
    sample_bytes: NDArray[np.int64]
    known: str
    rows: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return self.num_samples if self.rows is None else len(self.rows)

    def key(self, number: int) -> str:
        return f"row {number if self.rows is None else int(self.rows[number])}"

    def record_bytes(self) -> NDArray[np.int64]:
        sizes = self.sample_bytes if self.rows is None else self.sample_bytes[self.rows]
        return sizes + (_HEADER_BYTES if is_tar(self.format) else 0)

    def without(self, distinct: Distinct, by: Dedup) -> _DatasetInputs:
        return replace(self, rows=distinct.kept, duplicates=distinct.counted(by, self.key))

    def labels(self, key: str) -> Sequence[str | None]:
        names = self.classes.get(key)
        labels: list[str | None] = []
        for row in _opened(self.paths):
            if key not in row:
                msg = f"the rows have no {key!r}; they have {', '.join(row)}"
                raise UsageError(msg, hint=did_you_mean(key, row) + "name one of their columns")
            value = row[key]
            labels.append(None if value is None else names[value] if names else str(value))
        return labels if self.rows is None else [labels[row] for row in self.rows.tolist()]

    def samples(self, numbers: NDArray[np.int64], copies: NDArray[np.int64]) -> _DatasetSamples:
        return _DatasetSamples(self.paths, self.format, numbers if self.rows is None else self.rows[numbers], copies)

    def digest(self) -> str:
        return self.known if self.rows is None else plan_of([self.known, self.rows.tolist()])

    def options(self, *, skips: bool) -> dict[str, Any]:  # noqa: ARG002  # all rows fit
        """Return format options that keep the column types, if the target has columns too."""
        options = options_like(_opened(self.paths).stream.opened, self.format)
        if "schema" in options:
            options["schema"] = _with_files(options["schema"])
        return options


@dataclass(frozen=True, slots=True, eq=False)
class _DatasetSamples:
    """Some rows of a dataset, read in stored order and yielded in the requested order."""

    paths: tuple[str, ...]
    format: str
    numbers: NDArray[np.int64]
    copies: NDArray[np.int64]

    def __iter__(self) -> Iterator[Sample | Unreadable]:
        chosen = np.unique(self.numbers)
        rows = zip(chosen.tolist(), _opened(self.paths).select(chosen), strict=True)
        ordered: Iterator[tuple[int, Sample]]
        if len(chosen) == len(self.numbers) and bool((np.diff(self.numbers) > 0).all()):
            ordered = rows
        else:
            # Holds all rows of the shard: as much memory as its bytes.
            held = dict(rows)
            ordered = ((number, held[number]) for number in self.numbers.tolist())
        to_tar = is_tar(self.format)
        for (number, row), copy in zip(ordered, self.copies.tolist(), strict=True):
            try:
                values = dict(_value(name, value, to_tar=to_tar) for name, value in row.items())
            except UsageError as refused:
                yield Unreadable(f"row {number}", refused, refused.message)
                continue
            yield {"__key__": copy_of(f"{number:09d}", copy), **values} if to_tar else values


def dataset_inputs(path: str, *, format: str) -> _DatasetInputs:  # noqa: A002
    """Return the rows of a directory of ``save_to_disk``; `SourceError` if it is incomplete or holds splits."""
    directory = Path(expand_home(path)).absolute()
    if (directory / _SPLITS).is_file():
        splits = _json(directory / _SPLITS).get("splits", [])
        msg = f"{directory}: this holds the splits {', '.join(splits)}"
        raise SourceError(msg, hint=f"pack each split separately: {directory / (splits or ['train'])[0]}")
    state = _json(directory / _STATE)
    if state.get("_indices_data_files"):
        msg = f"{directory}: an old release of datasets stored the order of the rows in a separate file"
        raise SourceError(msg, hint="load it with that release, call flatten_indices(), and save the result")
    try:
        paths = tuple(str(directory / entry["filename"]) for entry in state.get("_data_files", []))
    except (TypeError, KeyError):
        msg = f"{directory / _STATE}: this does not say which files hold the dataset"
        raise SourceError(msg, hint="save the dataset again with save_to_disk") from None
    index = _opened(paths).stream.opened.index
    means = index.extent_decoded_bytes // np.maximum(index.extent_num_samples, 1)
    sizes = np.repeat(means, index.extent_num_samples).astype(np.int64)
    known = plan_of([index.fingerprint, index.shard_bytes.tolist(), list(index.shard_versions), format])
    return _DatasetInputs(
        format=format, classes=_classes(directory / _INFO), paths=paths, num_samples=index.num_samples,
        sample_bytes=sizes, known=known,
    )  # fmt: skip


def _json(path: Path) -> dict[str, Any]:
    """Read one of the small JSON files beside the shards."""
    store = LocalStore()
    data = store.read_range(str(path), 0, store.stat(str(path)).num_bytes)
    try:
        described = json.loads(data)
    except ValueError:
        described = None
    if not isinstance(described, dict):
        msg = f"{path}: this does not describe a dataset"
        _, fetch = pointer_in(bytes(data)) or ("", "")
        raise SourceError(msg, hint=fetch or "save the dataset again with save_to_disk")
    return described


def _opened(paths: tuple[str, ...]) -> Dataset:
    return open_dataset(list(paths), format="arrow").partition(rank=0, world_size=1)


def _classes(info: Path) -> dict[str, list[str]]:
    """Return the class names of each ClassLabel column."""
    if not info.is_file():
        return {}
    features = _json(info).get("features") or {}
    return {
        name: list(feature["names"])
        for name, feature in features.items()
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
    }


def _with_files(schema: Any) -> Any:
    """Return the schema of rows from `_value`: images and sounds become bytes."""
    pa = arrow_library("Arrow")
    fields = [field.with_type(_kind_with_files(pa, field.type)) for field in schema]
    return pa.schema(fields, metadata=schema.metadata)


def _kind_with_files(pa: Any, kind: Any) -> Any:
    if pa.types.is_struct(kind):
        inner = {field.name: field.with_type(_kind_with_files(pa, field.type)) for field in kind}
        return inner["bytes"].type if inner.keys() == _FILE else pa.struct(list(inner.values()))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        element = _kind_with_files(pa, kind.value_type)
        if element == kind.value_type:
            return kind
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(element, kind.list_size)
        return pa.large_list(element) if pa.types.is_large_list(kind) else pa.list_(element)
    return kind


def _value(name: str, value: Any, *, to_tar: bool) -> tuple[str, Any]:
    """Return the name and value of a field; an image or sound becomes its file's bytes, without the local path."""
    plain = _files_in(name, value)
    if to_tar and plain is not value and isinstance(plain, bytes):
        return f"{name}.{_suffix(plain, value['path'] or '')}", plain
    return name, plain


def _files_in(name: str, value: Any) -> Any:
    """Replace all images and sounds in a value, at any depth, by the bytes of their files."""
    if isinstance(value, dict):
        if value.keys() != _FILE:
            return {key: _files_in(name, inner) for key, inner in value.items()}
        data, path = value["bytes"], value["path"] or ""
        if data is None:
            msg = f"the column {name!r} names a file, {path.rpartition('/')[2]!r}, which is not in the dataset"
            raise UsageError(msg, hint="save it with its files: dataset.map(lambda row: row).save_to_disk(...)")
        return data
    if isinstance(value, list) and any(isinstance(inner, dict | list) for inner in value):
        return [_files_in(name, inner) for inner in value]
    return value


def _suffix(data: bytes, path: str) -> str:
    last = path.rpartition("/")[2]
    if "." in last:
        return last.rpartition(".")[2].lower()
    if data[:4] == b"RIFF":
        return "webp" if data[8:12] == b"WEBP" else "wav"
    return next((suffix for begin, suffix in _BEGINNINGS if data.startswith(begin)), "bin")
