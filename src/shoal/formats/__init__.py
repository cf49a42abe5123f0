"""Shard formats as objects, for options that file names cannot express: ``shoal.open(..., format=...)``.

>>> from shoal.formats import Delimited, Parquet
>>> Parquet(columns=["image", "label"]).name
'parquet'
>>> Delimited(delimiter=";", suffixes=(".csv",)).name
'csv'
"""

# This package turns bytes into samples and back, pure over buffers; a format's reader and writer live side by side.
#
# Names are imported on first use, as in the top-level package, since every module below imports this file first.

from __future__ import annotations as _annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from shoal.formats.compressed.reader import Compressed
    from shoal.formats.folder.reader import Folder
    from shoal.formats.lines.delimited import Delimited
    from shoal.formats.lines.reader import JsonLines
    from shoal.formats.lines.text import Text
    from shoal.formats.litdata.reader import LitData
    from shoal.formats.litdata.tokens import LitDataTokens
    from shoal.formats.mds.reader import Mds
    from shoal.formats.records import BadRecordError, CutRecords, borders_in
    from shoal.formats.shard_format import Buffer, Format, ReadBytes, Records, ShardScan, Stretch
    from shoal.formats.tables.arrow import Arrow
    from shoal.formats.tables.parquet import Parquet
    from shoal.formats.tar.reader import Tar
    from shoal.formats.tfrecord.reader import TFRecord
    from shoal.formats.tfrecord.recordio import RecordIO

__all__ = [
    "Arrow",
    "BadRecordError",
    "Buffer",
    "Compressed",
    "CutRecords",
    "Delimited",
    "Folder",
    "Format",
    "JsonLines",
    "LitData",
    "LitDataTokens",
    "Mds",
    "Parquet",
    "ReadBytes",
    "RecordIO",
    "Records",
    "ShardScan",
    "Stretch",
    "TFRecord",
    "Tar",
    "Text",
    "borders_in",
]

_WHERE = {
    "Arrow": "shoal.formats.tables.arrow",
    "BadRecordError": "shoal.formats.records",
    "Buffer": "shoal.formats.shard_format",
    "Compressed": "shoal.formats.compressed.reader",
    "CutRecords": "shoal.formats.records",
    "Delimited": "shoal.formats.lines.delimited",
    "Folder": "shoal.formats.folder.reader",
    "Format": "shoal.formats.shard_format",
    "JsonLines": "shoal.formats.lines.reader",
    "LitData": "shoal.formats.litdata.reader",
    "LitDataTokens": "shoal.formats.litdata.tokens",
    "Mds": "shoal.formats.mds.reader",
    "Parquet": "shoal.formats.tables.parquet",
    "ReadBytes": "shoal.formats.shard_format",
    "RecordIO": "shoal.formats.tfrecord.recordio",
    "Records": "shoal.formats.shard_format",
    "ShardScan": "shoal.formats.shard_format",
    "Stretch": "shoal.formats.shard_format",
    "TFRecord": "shoal.formats.tfrecord.reader",
    "Tar": "shoal.formats.tar.reader",
    "Text": "shoal.formats.lines.text",
    "borders_in": "shoal.formats.records",
}


def __getattr__(name: str) -> _Any:
    if name not in _WHERE:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    found = globals()[name] = getattr(_import_module(_WHERE[name]), name)  # looked up once
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
