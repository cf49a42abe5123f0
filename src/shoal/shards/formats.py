"""Which formats there are, and which of them a shard's name means."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from shoal.errors import SourceError
from shoal.shards.arrow import Arrow
from shoal.shards.codecs import CODECS
from shoal.shards.compressed import Compressed
from shoal.shards.delimited import Delimited
from shoal.shards.jsonl import JsonLines
from shoal.shards.mds import Mds
from shoal.shards.parquet import Parquet
from shoal.shards.protocol import Format
from shoal.shards.recordio import RecordIO
from shoal.shards.tar import Tar
from shoal.shards.text import Text
from shoal.shards.tfrecord import TFRecord

_TSV = Delimited(name="tsv", suffixes=(".tsv", ".tab"), delimiter="\t")
_ROWS: tuple[Format, ...] = (Tar(), JsonLines(), TFRecord(), Mds(), RecordIO(), Delimited(), _TSV, Text())
_COLUMNS: tuple[Format, ...] = (Parquet(), Arrow())  # compress themselves
_PLAIN = (*_ROWS, *_COLUMNS)
_COMPRESSED: tuple[Format, ...] = tuple(Compressed(entry, codec) for entry in _ROWS for codec in CODECS)

FORMATS: Mapping[str, Format] = MappingProxyType({entry.name: entry for entry in (*_PLAIN, *_COMPRESSED)})

# What often lies beside the shards of a dataset and is not one of them; in a directory it is data only if asked for.
_BESIDE_DATA = ("text", "csv", "tsv")


def format_named(name: str) -> Format:
    """The format of this name.

    >>> format_named("jsonl").suffixes
    ('.jsonl', '.ndjson')

    Raises
    ------
    SourceError
        Where there is none.
    """
    if name not in FORMATS:
        msg = f"there is no shard format {name!r}"
        raise SourceError(msg, hint=f"format= takes one of {_known()}")
    return FORMATS[name]


def format_of(path: str) -> Format:
    """The format that the suffix of a shard's name or path means; upper and lower case count alike.

    >>> format_of("s3://bucket/Train-000000.TAR").name
    'tar'

    Raises
    ------
    SourceError
        Where the suffix is none of a known format.
    """
    lowered = path.lower()
    for entry in FORMATS.values():
        if lowered.endswith(entry.suffixes):
            return entry
    name = path.replace("\\", "/").rsplit("/", 1)[-1]
    msg = f"the name {name!r} does not say which format the shard has; the suffixes known are {_suffixes()}"
    raise SourceError(msg, hint=f"say it with format=, one of {_known()}; shards of other formats cannot be read")


def suffixes_in_directories() -> tuple[str, ...]:
    """By which a shard is told from other files where a directory is opened without a format."""
    return tuple(
        suffix for entry in FORMATS.values() if _plain_name(entry) not in _BESIDE_DATA for suffix in entry.suffixes
    )


def _plain_name(entry: Format) -> str:
    return entry.name.partition(".")[0]


def _known() -> str:
    return (
        ", ".join(repr(entry.name) for entry in _PLAIN)
        + f", or one of the first {len(_ROWS)} and .{', .'.join(CODECS)}"
    )


def _suffixes() -> str:
    columns = ", ".join(suffix for entry in _COLUMNS for suffix in entry.suffixes)
    rows = ", ".join(suffix for entry in _ROWS for suffix in entry.suffixes)
    return f"{columns}; {rows}, and the latter followed by .{', .'.join(CODECS)}"
