"""The registry of formats, and the lookup of a format by a shard's name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from shoal.errors import SourceError
from shoal.formats.compressed.codecs import CODEC_OF_SUFFIX, CODECS
from shoal.formats.compressed.reader import Compressed
from shoal.formats.folder.reader import Folder
from shoal.formats.rows.lines.delimited import Delimited
from shoal.formats.rows.lines.reader import JsonLines, Text
from shoal.formats.rows.litdata.reader import LitData
from shoal.formats.rows.litdata.tokens import LitDataTokens
from shoal.formats.rows.mds.reader import Mds
from shoal.formats.rows.tar.reader import Tar
from shoal.formats.rows.tfrecord.reader import TFRecord
from shoal.formats.rows.tfrecord.recordio import RecordIO
from shoal.formats.rows.token_files import Tokens, options_in_name
from shoal.formats.shard_format import Format, as_format
from shoal.formats.tables.arrow import Arrow
from shoal.formats.tables.parquet import Parquet
from shoal.hints import did_you_mean
from shoal.plugins.doors import Door, names

FORMAT_MEMBERS = ("suffixes", "scan", "parse")
"""Members of a `Format` besides its name."""

_TSV = Delimited(name="tsv", suffixes=(".tsv", ".tab"), delimiter="\t")
_ROWS: tuple[Format, ...] = (Tar(), JsonLines(), TFRecord(), Mds(), RecordIO(), Delimited(), _TSV, Text())
_COLUMNS: tuple[Format, ...] = (Parquet(), Arrow())  # compress themselves
_MAKERS: Door[Format] = Door(
    "shoal.formats",
    {
        "csv": Delimited,
        "tsv": lambda **options: Delimited(**{"name": "tsv", "suffixes": _TSV.suffixes, "delimiter": "\t", **options}),
        "litdata": lambda **options: LitData(options),
        "litdata_tokens": lambda **options: LitDataTokens(options, block_size=options["block_size"]),
        "folder": Folder,
        "tokens": Tokens,
    },
    members=("name", *FORMAT_MEMBERS),
)
# Entry points of packages may be named by a suffix, too, so that it is known before a format is loaded.
_BY_SUFFIX: Door[Format] = Door(_MAKERS.group, {}, members=FORMAT_MEMBERS)
_OF_PACKAGES: dict[str, Format] = {}  # by suffix: a cache for look-ups of each shard
_TOKENS_FORMAT = 'format=shoal.formats.LitDataTokens(json.loads(Path("DIR/index.json").read_text()), block_size=2049)'
_OF_AN_INDEX = {
    "litdata": "leave out format= and name the directory: the index.json there says what the chunks hold",
    "litdata_tokens": f"say in Python how long a sample is: {_TOKENS_FORMAT}",
}
_OWN = "pass your own format as format=Class(), or as `--format module:Class` in a shell, or register it in a package"
_PLAIN = (*_ROWS, *_COLUMNS)
_COMPRESSED: tuple[Format, ...] = tuple(Compressed(entry, codec) for entry in _ROWS for codec in CODECS)

FORMATS: Mapping[str, Format] = MappingProxyType({entry.name: entry for entry in (*_PLAIN, *_COMPRESSED)})

# JSON Lines named .json, as in C4 and Streaming. Uncompressed .json files lie beside many datasets as metadata, so in a
# directory only compressed ones count as shards.
_PACKED_JSON = {f".json{ending}": f"jsonl.{codec}" for ending, codec in CODEC_OF_SUFFIX.items()}
_LINES_OF_JSON = {".json": "jsonl", **_PACKED_JSON}

# TensorFlow numbers shards after their suffix: a.tfrecord-00000-of-00042.
_NUMBER = re.compile(r"-\d{5,}-of-\d{5,}$")

# Files of these formats often lie beside shards; in a directory they are data only on request.
_BESIDE_DATA = ("text", "csv", "tsv")


def format_named(name: str, options: Mapping[str, Any] | None = None) -> Format:
    """Return the format of this name, with options as `options_of` returns them.

    >>> format_named("jsonl").suffixes
    ('.jsonl', '.ndjson')

    Raises `SourceError`: there is none of this name, or none with such options.
    """
    if not options and name in FORMATS:
        return FORMATS[name]
    if not options and (in_name := options_in_name(name)) is not None:
        return format_named(Tokens.name, in_name)
    plain, _, codec = name.partition(".")
    makers = _MAKERS.own if plain in FORMATS else _MAKERS
    if not plain or plain not in makers or (codec and codec not in CODECS):
        msg = f"there is no shard format {name!r}" + (f" with options {dict(options)!r:.200}" if options else "")
        meant = did_you_mean(name, (*FORMATS, *_MAKERS))
        raise SourceError(msg, hint=f"{meant}format= takes one of {_known()}; {_OWN}")
    # Looked up by its own options, so that equal formats are one object: workers ask for it by name and options.
    form = _format_with(name, json.dumps(options or {}, sort_keys=True))
    return _format_with(name, json.dumps(options_of(form), sort_keys=True))


def options_of(format: Format) -> dict[str, Any]:  # noqa: A002
    """Return the options, besides its name, that determine how a format finds samples, as JSON; an index keeps them.

    >>> options_of(Delimited(delimiter=";"))
    {'delimiter': ';'}
    """
    return dict(format.options)


def format_given(format: str | Format) -> Format:  # noqa: A002
    """Resolve ``format=``: a format's name or a format object. A ``whole_codec`` wraps the object.

    Raises `SourceError` if there is no format of this name.
    """
    if isinstance(format, str):
        return format_named(format)
    format = as_format(format)  # noqa: A001
    return Compressed(format, format.whole_codec) if format.whole_codec else format


@lru_cache(maxsize=256)
def _format_with(name: str, text: str) -> Format:
    plain, _, codec = name.partition(".")
    options = json.loads(text)
    if not options and name in FORMATS:
        return FORMATS[name]
    if not options and plain in _OF_AN_INDEX:
        msg = f"the format {name!r} needs the contents of the index.json beside the chunks"
        raise SourceError(msg, hint=_OF_AN_INDEX[plain])
    try:
        inner = as_format(_MAKERS.make(plain, **options))
    except (LookupError, TypeError) as error:
        msg = f"the format {name!r} has no options {options!r:.200} ({type(error).__name__}: {error})"
        raise SourceError(msg, hint="give the format as an object of shoal.formats, with format=") from None
    return Compressed(inner, codec) if codec else inner


def format_of(path: str) -> Format:
    """Return the format that the suffix of a shard's name or path implies, in upper or lower case.

    >>> format_of("s3://bucket/Train-000000.TAR").name, format_of("mnist-train.tfrecord-00000-of-00042").name
    ('tar', 'tfrecord')

    Raises `SourceError`: no known format has this suffix.
    """
    lowered = _NUMBER.sub("", path.lower())
    for entry in (*FORMATS.values(), *_OF_PACKAGES.values()):
        if lowered.endswith(entry.suffixes):
            return entry
    for suffix, name in _LINES_OF_JSON.items():
        if lowered.endswith(suffix):
            return FORMATS[name]
    if (of_package := _of_package(lowered)) is not None:
        return of_package
    tokens = "tokens? format=shoal.formats.Tokens(length) reads windows of them; " * lowered.endswith(Tokens.suffixes)
    name = path.replace("\\", "/").rsplit("/", 1)[-1]
    columns, rows = (", ".join(suffix for entry in kind for suffix in entry.suffixes) for kind in (_COLUMNS, _ROWS))
    suffixes = f"{columns}; and {rows}, each alone or followed by .{', .'.join(CODECS)}"
    msg = f"the name {name!r} does not say which format the shard has; the known suffixes are {suffixes}"
    raise SourceError(
        msg, hint=f"{tokens}say it with format=, one of {_known()}; shards of other formats cannot be read"
    )


def suffixes_in_directories() -> tuple[str, ...]:
    """Return the suffixes that mark shards among other files when a directory is opened without a format."""
    data = (entry for entry in FORMATS.values() if entry.name.partition(".")[0] not in _BESIDE_DATA)
    return (*(suffix for entry in data for suffix in entry.suffixes), *_PACKED_JSON)


def suffixes_of_packages() -> tuple[str, ...]:
    """Return the suffixes of formats of other packages, plain and compressed; none of the formats is loaded."""
    suffixes = (name for name in names(_MAKERS.group) if name.startswith("."))
    return tuple(suffix + ending for suffix in suffixes for ending in ("", *CODEC_OF_SUFFIX))


def _of_package(lowered: str) -> Format | None:
    """Return the format that another package registers for the suffix of a name."""
    ending = next((suffix for suffix in suffixes_of_packages() if lowered.endswith(suffix)), None)
    if ending is None:
        return None
    packed = next((end for end in CODEC_OF_SUFFIX if ending.endswith(end) and ending not in _BY_SUFFIX), "")
    name = getattr(_BY_SUFFIX.make(ending.removesuffix(packed)), "name", "")
    _OF_PACKAGES[ending] = format_named(f"{name}.{CODEC_OF_SUFFIX[packed]}" if packed else name)
    return _OF_PACKAGES[ending]


def _known() -> str:
    of_packages = (name for name in names(_MAKERS.group) if not name.startswith("."))
    known = ", ".join(map(repr, (*(entry.name for entry in _PLAIN), "folder", *of_packages)))
    return f"{known}; each of the first {len(_ROWS)} may be followed by .{', .'.join(CODECS)}"
