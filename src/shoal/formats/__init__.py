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

from typing import TYPE_CHECKING as _TYPE_CHECKING

from shoal.lazy_names import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from shoal.formats.compressed.reader import Compressed
    from shoal.formats.folder.reader import Folder
    from shoal.formats.lines.delimited import Delimited
    from shoal.formats.lines.reader import JsonLines, Text
    from shoal.formats.litdata.reader import LitData
    from shoal.formats.litdata.tokens import LitDataTokens
    from shoal.formats.mds.reader import Mds
    from shoal.formats.records import BadRecordError, CutRecords, borders_in
    from shoal.formats.shard_format import Format, ReadBytes, Records, Span
    from shoal.formats.tables.arrow import Arrow
    from shoal.formats.tables.parquet import Parquet
    from shoal.formats.tar.reader import Tar
    from shoal.formats.tfrecord.reader import TFRecord
    from shoal.formats.tfrecord.recordio import RecordIO
    from shoal.formats.tokens.token_files import Tokens
    from shoal.index.shard_scan import Buffer, ShardScan

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
    "Span",
    "TFRecord",
    "Tar",
    "Text",
    "Tokens",
    "borders_in",
]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "shoal.formats.compressed.reader": "Compressed",
        "shoal.formats.folder.reader": "Folder",
        "shoal.formats.lines.delimited": "Delimited",
        "shoal.formats.lines.reader": "JsonLines Text",
        "shoal.formats.litdata.reader": "LitData",
        "shoal.formats.litdata.tokens": "LitDataTokens",
        "shoal.formats.mds.reader": "Mds",
        "shoal.formats.records": "BadRecordError CutRecords borders_in",
        "shoal.formats.shard_format": "Format ReadBytes Records Span",
        "shoal.formats.tables.arrow": "Arrow",
        "shoal.formats.tables.parquet": "Parquet",
        "shoal.formats.tar.reader": "Tar",
        "shoal.formats.tfrecord.reader": "TFRecord",
        "shoal.formats.tfrecord.recordio": "RecordIO",
        "shoal.formats.tokens.token_files": "Tokens",
        "shoal.index.shard_scan": "Buffer ShardScan",
    },
)
