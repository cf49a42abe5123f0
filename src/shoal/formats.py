"""The formats of shards, for what their names cannot say: options of a format, as ``shoal.open(..., format=...)``.

>>> from shoal.formats import Delimited, Parquet
>>> Parquet(columns=["image", "label"]).name
'parquet'
>>> Delimited(delimiter=";", suffixes=(".csv",)).name
'csv'
"""

from __future__ import annotations

from shoal.shards.arrow import Arrow
from shoal.shards.compressed import Compressed
from shoal.shards.delimited import Delimited
from shoal.shards.folder import Folder
from shoal.shards.jsonl import JsonLines
from shoal.shards.litdata import LitData
from shoal.shards.litdata_tokens import LitDataTokens
from shoal.shards.mds import Mds
from shoal.shards.parquet import Parquet
from shoal.shards.protocol import Buffer, Format, ReadBytes, Records, ShardScan, Stretch
from shoal.shards.recordio import RecordIO
from shoal.shards.records import BadRecordError, CutRecords, borders_in
from shoal.shards.tar import Tar
from shoal.shards.text import Text
from shoal.shards.tfrecord import TFRecord

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
