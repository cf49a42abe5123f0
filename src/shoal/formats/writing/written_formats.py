"""The formats that can be written, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shoal.errors import UsageError
from shoal.formats.compressed.writer import COMPRESSORS, CompressedEncoder
from shoal.formats.rows.lines.writer import JsonLinesEncoder
from shoal.formats.rows.mds.writer import MdsEncoder
from shoal.formats.rows.tar.writer import TarEncoder
from shoal.formats.rows.tfrecord.writer import TFRecordEncoder
from shoal.formats.tables.writer import ArrowEncoder, ParquetEncoder
from shoal.formats.writing.encoder import Encoder
from shoal.hints import did_you_mean

_Encoders = dict[str, Callable[..., Encoder]]
_ROWS: _Encoders = {"tar": TarEncoder, "jsonl": JsonLinesEncoder, "tfrecord": TFRecordEncoder, "mds": MdsEncoder}
_COLUMNS: _Encoders = {"parquet": ParquetEncoder, "arrow": ArrowEncoder}

TABLE_FORMATS = tuple(_COLUMNS)
"""Names of the formats whose shards have columns of one type each, declared by a schema."""

WRITTEN_FORMATS = (*_ROWS, *_COLUMNS, *(f"{name}.{codec}" for name in _ROWS for codec in COMPRESSORS))
"""Names of all formats that can be written."""


def encoder_named(name: str, **options: Any) -> Encoder:
    """Return the encoder of this name, with its options.

    Raises `UsageError` if there is none, or it does not take the options.

    >>> encoder_named("jsonl.zst").suffix
    '.jsonl.zst'
    """
    plain, _, codec = name.partition(".")
    if name not in WRITTEN_FORMATS:
        msg = f"there is no format {name!r} to write"
        hint = f"format= takes {', '.join(_ROWS)}, each also with .{', .'.join(COMPRESSORS)}"
        hint += f"; {', '.join(_COLUMNS)} compress themselves"
        raise UsageError(msg, hint=did_you_mean(name, WRITTEN_FORMATS) + hint)
    try:
        encoder = (_ROWS | _COLUMNS)[plain](**options)
    except TypeError:
        msg = f"the format {plain!r} does not take {', '.join(f'{option}=' for option in options)}"
        raise UsageError(msg, hint="leave out the options of other formats") from None
    return CompressedEncoder(encoder, codec) if codec else encoder


def options_of_shard(name: str, head: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that write a format as in an existing shard, by the head of the shard.

    >>> options_of_shard("mds", {"columns": [["label", "int"]]})
    {'columns': {'label': 'int'}}
    """
    plain, _, codec = name.partition(".")
    inner = head.get("inner", {}) if codec else head
    return {"columns": dict(inner["columns"])} if plain == "mds" and "columns" in inner else {}
