"""Shard formats as objects, for options that file names cannot express: ``shoal.open(..., format=...)``.

>>> shoal.open("pets.csv", format=shoal.formats.Delimited(delimiter=";"))[0]
{'name': 'Tom', 'age': '3'}
"""

# This package turns bytes into samples and back, pure over buffers; a format's reader and writer live side by side.
#
# Names are imported on first use, as in the top-level package, since every module below imports this file first.

from __future__ import annotations as _annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING

from shoal.lazy_names import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from shoal.formats.by_library.array_rows import ArrayRows, spilled_arrays
    from shoal.formats.by_library.file_of_ranges import FileOfRanges, NotedReads, known_reads
    from shoal.formats.by_library.piece_cuts import PieceCuts, StoredRows
    from shoal.formats.compressed.reader import Compressed
    from shoal.formats.folder.reader import Folder
    from shoal.formats.rows.lines.delimited import Delimited
    from shoal.formats.rows.lines.reader import JsonLines, Text
    from shoal.formats.rows.litdata.reader import LitData
    from shoal.formats.rows.litdata.tokens import LitDataTokens
    from shoal.formats.rows.mds.reader import Mds
    from shoal.formats.rows.records import BadRecordError, CutRecords, borders_in
    from shoal.formats.rows.tar.reader import Tar
    from shoal.formats.rows.tfrecord.reader import TFRecord
    from shoal.formats.rows.tfrecord.recordio import RecordIO
    from shoal.formats.rows.token_files import Tokens
    from shoal.formats.shard_format import Format, ReadBytes, Records, Span
    from shoal.formats.tables.arrow import Arrow
    from shoal.formats.tables.parquet import Parquet
    from shoal.index.shard_scan import Buffer, ShardScan

__all__ = [
    "ArrayRows",
    "Arrow",
    "BadRecordError",
    "Buffer",
    "Compressed",
    "CutRecords",
    "Delimited",
    "FileOfRanges",
    "Folder",
    "Format",
    "JsonLines",
    "LitData",
    "LitDataTokens",
    "Mds",
    "NotedReads",
    "Parquet",
    "PieceCuts",
    "ReadBytes",
    "RecordIO",
    "Records",
    "ShardScan",
    "Span",
    "StoredRows",
    "TFRecord",
    "Tar",
    "Text",
    "Tokens",
    "borders_in",
    "known_reads",
    "spilled_arrays",
]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "shoal.formats.compressed.reader": "Compressed",
        "shoal.formats.folder.reader": "Folder",
        "shoal.formats.rows.lines.delimited": "Delimited",
        "shoal.formats.rows.lines.reader": "JsonLines Text",
        "shoal.formats.rows.litdata.reader": "LitData",
        "shoal.formats.rows.litdata.tokens": "LitDataTokens",
        "shoal.formats.rows.mds.reader": "Mds",
        "shoal.formats.rows.records": "BadRecordError CutRecords borders_in",
        "shoal.formats.shard_format": "Format ReadBytes Records Span",
        "shoal.formats.by_library.array_rows": "ArrayRows spilled_arrays",
        "shoal.formats.tables.arrow": "Arrow",
        "shoal.formats.by_library.file_of_ranges": "FileOfRanges NotedReads known_reads",
        "shoal.formats.tables.parquet": "Parquet",
        "shoal.formats.by_library.piece_cuts": "PieceCuts StoredRows",
        "shoal.formats.rows.tar.reader": "Tar",
        "shoal.formats.rows.tfrecord.reader": "TFRecord",
        "shoal.formats.rows.tfrecord.recordio": "RecordIO",
        "shoal.formats.rows.token_files": "Tokens",
        "shoal.index.shard_scan": "Buffer ShardScan",
    },
)
