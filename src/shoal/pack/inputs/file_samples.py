"""Makers of samples from files, by the format of the shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from shoal.errors import UsageError
from shoal.formats.shard_format import Sample
from shoal.formats.tables.column_kinds import ColumnKinds, kinds_of_rows, schema_of_kinds
from shoal.formats.writing.written_formats import TABLE_FORMATS


class _Maker(Protocol):
    """Function that makes a sample from its key, its files by field, its class and further fields."""

    def __call__(
        self,
        key: str,
        values: dict[str, bytes],
        label: int,
        classes: tuple[str, ...],
        extra: Mapping[str, Any] | None,
        *,
        grouped: bool,
    ) -> Sample: ...


def maker_of(format_name: str) -> _Maker:
    """Return the function that makes samples for shards of this format."""
    return {"tar": _as_members, "jsonl": _as_line}.get(format_name.partition(".")[0], _as_row)


def fields_beside(
    format_name: str, *, labelled: bool = False, extra: bool = False, grouped: bool = False
) -> dict[str, str]:
    """Return the fields that samples get besides their files and that could collide with a file, with descriptions.

    Ungrouped rows hold their file as ``data`` (or ``text``), whatever its name.
    """
    if format_name.partition(".")[0] == "tar":
        found = {"__key__": "its key"}
        return (
            found | ({"cls": "its class"} if labelled else {}) | ({"json": "the row of the manifest"} if extra else {})
        )
    if not grouped:
        return {}
    return {"key": "its key"} | (dict.fromkeys(("label", "class"), "its class") if labelled else {})


def _as_members(
    key: str,
    values: dict[str, bytes],
    label: int,
    classes: tuple[str, ...],  # noqa: ARG001  # their names are in the key
    extra: Mapping[str, Any] | None,
    *,
    grouped: bool,  # noqa: ARG001  # members always have their suffixes
) -> Sample:
    """Make a tar sample: files unchanged, the class as its number, further fields as JSON."""
    sample: Sample = {"__key__": key, **values}
    if label >= 0:
        sample["cls"] = b"%d" % label
    if extra:
        sample["json"] = dict(extra)
    return sample


def _as_row(
    key: str,
    values: dict[str, bytes],
    label: int,
    classes: tuple[str, ...],
    extra: Mapping[str, Any] | None,
    *,
    grouped: bool,
) -> Sample:
    """Make a row: the file as ``data`` (grouped files each by suffix), the class as a number and a name."""
    sample: Sample = {"key": key}
    if not grouped:
        sample["data"] = next(iter(values.values()))
    else:
        sample |= values
    if label >= 0:
        sample |= {"label": label, "class": classes[label]}
    return sample | dict(extra or {})


def _as_line(
    key: str,
    values: dict[str, bytes],
    label: int,
    classes: tuple[str, ...],
    extra: Mapping[str, Any] | None,
    *,
    grouped: bool,
) -> Sample:
    """Make a row whose files are decoded as UTF-8 text."""
    row = _as_row(key, values, label, classes, extra, grouped=grouped)
    if not grouped:
        row = {"key": key, "text": row["data"], **{name: row[name] for name in row if name not in ("key", "data")}}
    for name, value in row.items():
        if isinstance(value, bytes):
            try:
                row[name] = value.decode("utf-8")
            except UnicodeDecodeError as error:
                msg = f"{key}: byte {error.start} of the file is no UTF-8 text, and JSON holds no bytes"
                raise UsageError(msg, hint="pack into tar, mds, parquet, arrow or tfrecord") from None
    return row


_AT_ONCE = 4096  # rows of a manifest


def columns_of_files(
    format_name: str,
    *,
    fields: Iterable[str],
    labelled: bool,
    extra: Sequence[Mapping[str, Any]] = (),
    skips: bool,
) -> dict[str, Any]:
    """Return options that give all shards the columns of all samples; empty if shards are not tables.

    ``fields`` hold files, ``extra`` has the manifest's columns for each sample. O(samples) with a manifest.

    Raises
    ------
    UsageError
        A column of the manifest mixes values that no single column type can hold, unless ``skips``.
    """
    if format_name not in TABLE_FORMATS:
        return {}
    row: dict[str, Any] = {"key": "", **dict.fromkeys(fields, b"")}
    if labelled:
        row |= {"label": 0, "class": ""}
    kinds: ColumnKinds = kinds_of_rows({}, [row], first=0, format_name=format_name, skips=False)
    for start in range(0, len(extra), _AT_ONCE):
        rows = [dict(values) for values in extra[start : start + _AT_ONCE]]
        kinds = kinds_of_rows(kinds, rows, first=start, format_name=format_name, skips=skips)
    return {"schema": schema_of_kinds(kinds)}
