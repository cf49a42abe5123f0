"""What an ``index.json`` beside shards says: which shards there are, of which format, how large, of how many samples.

MosaicML Streaming and LitData write one for each directory. It is used after a check: every shard it names must be
there, and hold what it says (`shoal.formats.metadata.scanning.checked_scan`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.errors import ShardError, SourceError, UsageError
from shoal.formats.known_formats import format_named, options_of
from shoal.formats.litdata.reader import LitData, whole_codec
from shoal.formats.shard_format import Buffer, Format

__all__ = [
    "MANIFEST_NAME",
    "STALE",
    "Expected",
    "Hashes",
    "Manifest",
    "NamedShard",
    "check_hashes",
    "named_shards",
    "read_manifest",
]

MANIFEST_NAME = "index.json"
STALE = "copy the shard again; or, if it is right, write the index.json again or take it away"
_STREAMING = ("mds", "json", "csv", "tsv", "xsv")
_XXHASHES = ("xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128")
_CODECS = {"zstd": "zst", "gz": "gz", "bz2": "bz2", "br": "br", "snappy": "snappy"}


@dataclass(frozen=True, slots=True)
class Expected:
    """What a shard should be: its bytes and samples (None where nobody says), and digests by the names of hashes."""

    num_bytes: int | None = None
    num_samples: int | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NamedShard:
    """One shard: its name beside the manifest, and what it should be; the same for its compressed form, if it has one.

    Exactly one of the two forms is there, as a rule; Streaming's local caches have both.
    """

    name: str
    expected: Expected
    packed_name: str | None = None
    packed: Expected | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """The shards that an ``index.json`` names, in its order, and their format; ``packed_format`` when compressed."""

    format: Format
    shards: tuple[NamedShard, ...]
    packed_format: Format | None = None


def read_manifest(data: Buffer, *, path: str) -> Manifest | None:
    """The manifest in these bytes; None where they are some other JSON.

    Raises
    ------
    SourceError
        It is one, and names shards that cannot be read, or not all as one format, or contradicts itself; or it is no
        JSON, as one that was cut short.
    """
    try:
        found = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        msg = f"{path}: this index.json of {len(data)} bytes is no JSON: {reason}"
        hint = "was it cut short? copy it again; or take it away, or name the shards by a glob"
        raise SourceError(msg, hint=hint) from None
    if not isinstance(found, dict):
        return None
    try:
        if isinstance(found.get("shards"), list) and found["shards"]:
            return _of_streaming(found["shards"], path)
        if isinstance(found.get("chunks"), list) and isinstance(found.get("config"), dict):
            return _of_litdata(found, path)
    except UsageError as error:
        msg = f"{path}: {error.message}"
        raise SourceError(msg, hint=error.hint) from None
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        msg = f"{path}: it begins like the index.json of a dataset, and cannot be read: {type(error).__name__}: {error}"
        hint = "copy it again; or name the shards by a glob, with format="
        raise SourceError(msg, hint=hint) from None
    return None


class Hashes:
    """Digests of the bytes of a shard as they come, to be compared with those that are expected.

    Those of xxhash are where that library is installed.
    """

    def __init__(self, expected: Expected) -> None:
        self._wanted = expected.hashes
        self._digests = {name: made for name in expected.hashes if (made := _digest(name)) is not None}

    def add(self, data: Buffer) -> None:
        """The next bytes."""
        for digest in self._digests.values():
            digest.update(data)

    def check(self, *, shard: str) -> int:
        """How many of the hashes are known here, once all bytes came.

        Raises
        ------
        ShardError
            One is another.
        """
        for name, digest in self._digests.items():
            wanted = self._wanted[name]
            if digest.hexdigest() != wanted.lower():
                msg = f"the index.json beside it says {name} {wanted:.80}, and its bytes have {digest.hexdigest()}"
                raise ShardError(msg, shard=shard, byte=0, hint=STALE)
        return len(self._digests)


def check_hashes(data: Iterable[Buffer], expected: Expected, *, shard: str) -> int:
    """Compare the bytes of a whole shard with its hashes; how many of these are known here.

    Raises
    ------
    ShardError
        One is another.
    """
    hashes = Hashes(expected)
    if expected.hashes:
        for part in data:
            hashes.add(part)
    return hashes.check(shard=shard)


def _digest(name: str) -> Any:
    """What takes bytes and gives a hash; None where nothing here knows it."""
    if name in hashlib.algorithms_available and not name.startswith("shake_"):
        return hashlib.new(name, usedforsecurity=False)
    if name not in _XXHASHES:
        return None
    try:
        import xxhash  # noqa: PLC0415  # optional

        return getattr(xxhash, name)()
    except ImportError:
        return None  # counts, sizes and other hashes must do; `shoal index --checksum` says so


def named_shards(data: Buffer, *, path: str) -> tuple[NamedShard, ...]:
    """The shards that the manifest in these bytes names, in its order, whatever their format; none where it is none.

    Raises
    ------
    SourceError
        It begins like one, and cannot be read.
    """
    try:
        found = json.loads(bytes(data))
        if isinstance(found, dict) and isinstance(found.get("shards"), list):
            return tuple(_streaming_shard(about, path) for about in found["shards"])
        if isinstance(found, dict) and isinstance(found.get("chunks"), list) and isinstance(found.get("config"), dict):
            return _litdata_shards(found, path)
    except UsageError as error:
        msg = f"{path}: {error.message}"
        raise SourceError(msg, hint=error.hint) from None
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        msg = f"{path}: it says the order of the shards, and cannot be read: {type(error).__name__}: {error}"
        raise SourceError(msg, hint="copy it again; or name the shards by a list or a glob") from None
    return ()


def _of_streaming(shards: Sequence[Mapping[str, Any]], path: str) -> Manifest:
    formats = {json.dumps(_streaming_format(about), sort_keys=True) for about in shards}
    if len(formats) > 1:
        kinds = sorted({str(about["format"]) for about in shards})
        msg = f"it names shards of {len(formats)} formats or schemas ({', '.join(kinds)})"
        raise UsageError(msg, hint="name by a glob those of one format, with format=")
    name, options = json.loads(next(iter(formats)))
    packings = {about.get("compression") for about in shards}
    codecs = {_CODECS[str(packing).partition(":")[0]] for packing in packings if packing}
    if len(codecs) > 1:
        msg = f"its shards are compressed in {len(codecs)} ways"
        raise UsageError(msg, hint="name by a glob those of one kind")
    packed = format_named(f"{name}.{codecs.pop()}", options) if codecs else None
    return Manifest(format_named(name, options), tuple(_streaming_shard(about, path) for about in shards), packed)


def _streaming_format(about: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and options of the format of one of Streaming's shards."""
    kind = str(about["format"])
    if kind not in _STREAMING or about["version"] != 2:
        msg = f"it names shards of the format {kind!r}, version {about['version']!r}"
        raise UsageError(msg, hint=f"shards of {', '.join(_STREAMING)}, version 2, are read")
    if kind == "mds":
        return kind, {}
    if about["newline"] not in ("\n", "\r\n"):
        msg = f"the lines of its shards end with {about['newline']!r}"
        raise UsageError(msg, hint=r'lines that end with "\n" or "\r\n" are read')
    if kind == "json":
        return "jsonl", {}
    encodings = dict(zip(about["column_names"], about["column_encodings"], strict=True))
    types = {str(name): str(encoding) for name, encoding in encodings.items() if encoding != "str"}
    delimiter = {"csv": ",", "tsv": "\t"}.get(kind) or str(about["separator"])
    return "csv", {"delimiter": delimiter, "quoted": False, "newline": about["newline"], "types": types}


def _streaming_shard(about: Mapping[str, Any], path: str) -> NamedShard:
    raw, packed = about["raw_data"], about.get("zip_data")
    num_samples = int(about["samples"])
    return NamedShard(
        _safe(raw["basename"], path),
        _expected(raw, num_samples),
        None if packed is None else _safe(packed["basename"], path),
        None if packed is None else _expected(packed, num_samples),
    )


def _expected(about: Mapping[str, Any], num_samples: int) -> Expected:
    hashes = {str(name): str(digest) for name, digest in dict(about.get("hashes") or {}).items()}
    return Expected(int(about["bytes"]), num_samples, hashes)


def _of_litdata(found: Mapping[str, Any], path: str) -> Manifest:
    if found["config"].get("item_loader") == "ParquetLoader":
        return Manifest(format_named("parquet"), _litdata_shards(found, path))
    reader = LitData(found)
    # By name and options, so that equal formats are one object.
    plain = format_named(reader.name, options_of(reader))
    packed = format_named(f"{reader.name}.{reader.whole_codec}", options_of(reader)) if reader.whole_codec else None
    return Manifest(plain, _litdata_shards(found, path), packed)


def _litdata_shards(found: Mapping[str, Any], path: str) -> tuple[NamedShard, ...]:
    """The chunks in their order. Of compressed ones the manifest has the bytes of what is inside.

    LitData's reader leaves chunks decompressed, by another name, where it read them on this machine.
    """
    infix = f".{found['config']['compression']}." if whole_codec(found["config"]) else None
    shards = []
    for about in found["chunks"]:
        name = _safe(about["filename"], path)
        expected = Expected(int(about["chunk_bytes"]), int(about["chunk_size"]))
        if infix is None:
            shards.append(NamedShard(name, expected))
        else:
            shards.append(NamedShard(name.replace(infix, "."), expected, name, replace(expected, num_bytes=None)))
    return tuple(shards)


def _safe(name: Any, path: str) -> str:
    """A name that stays in the directory of the manifest."""
    text = str(name).replace("\\", "/")
    if not text or text.startswith("/") or ".." in text.split("/") or any(ord(letter) < 32 for letter in text):
        msg = f"{path} names a shard {name!r:.200}"
        raise ValueError(msg)
    return text
