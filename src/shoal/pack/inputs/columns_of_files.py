"""Columns of tables made from files: determined from names and manifests, before any file is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shoal.formats.tables.column_kinds import ColumnKinds, kinds_of_rows, schema_of_kinds
from shoal.formats.writing.encoders import TABLE_FORMATS

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
