"""Manifests: the ``index.json`` beside shards, which lists the shards, their format, their sizes and sample counts.

MosaicML Streaming and LitData write one for each directory. A manifest is checked before it is trusted: every shard it
names must exist and hold what it says (`shoal.formats.metadata.scanning.checked_scan`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.errors import ShardError, SourceError, UsageError
from shoal.formats.format_registry import format_named, options_of
from shoal.formats.rows.litdata.reader import LitData, whole_codec
from shoal.formats.shard_format import Format
from shoal.index.shard_scan import Buffer

MANIFEST_NAME = "index.json"
STALE = "copy the shard again; or, if it is right, write the index.json again or remove it"
_STREAMING = ("mds", "json", "csv", "tsv", "xsv")
_XXHASHES = ("xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128")
_CODECS = {"zstd": "zst", "gz": "gz", "bz2": "bz2", "br": "br", "snappy": "snappy"}


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected bytes and samples of a shard (None where not stated), and its digests by hash name."""

    num_bytes: int | None = None
    num_samples: int | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NamedShard:
    """One shard of a manifest: its file name, what it should contain, and both for its compressed form, if any.

    As a rule exactly one of the two forms exists; Streaming's local caches have both.
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
    """Parse a manifest; None if the bytes are some other JSON.

    Raises `SourceError` if it is a manifest, but names shards that cannot be read, or mixes formats, or contradicts
    itself; or it is not JSON, for example because it was cut short.
    """
    try:
        found = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        msg = f"{path}: this index.json of {len(data)} bytes is not JSON: {reason}"
        hint = "was it cut short? copy it again; or remove it, or name the shards by a glob"
        raise SourceError(msg, hint=hint) from None
    with _readable(path, "it begins like the index.json of a dataset", "a glob, with format="):
        if _is_streaming(found) and found["shards"]:
            return _of_streaming(found["shards"], path)
        if _is_litdata(found):
            return _of_litdata(found, path)
    return None


def named_shards(data: Buffer, *, path: str) -> tuple[NamedShard, ...]:
    """Return the shards that a manifest names, in its order, whatever their format; none if it is no manifest.

    Raises `SourceError` if it begins like a manifest, but cannot be read.
    """
    with _readable(path, "it says the order of the shards", "a list or a glob"):
        found = json.loads(bytes(data))
        if _is_streaming(found):
            return tuple(_streaming_shard(about, path) for about in found["shards"])
        if _is_litdata(found):
            return _litdata_shards(found, path)
    return ()


@contextmanager
def _readable(path: str, what: str, instead: str) -> Iterator[None]:
    """Turn the errors of a manifest that cannot be read into `SourceError`."""
    try:
        yield
    except UsageError as error:
        raise SourceError(f"{path}: {error.message}", hint=error.hint) from None
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        msg = f"{path}: {what}, and cannot be read: {type(error).__name__}: {error}"
        raise SourceError(msg, hint=f"copy it again; or name the shards by {instead}") from None


def _is_streaming(found: Any) -> bool:
    return isinstance(found, dict) and isinstance(found.get("shards"), list)


def _is_litdata(found: Any) -> bool:
    return isinstance(found, dict) and isinstance(found.get("chunks"), list) and isinstance(found.get("config"), dict)


class Hashes:
    """Running digests of a shard's bytes, to be compared with the expected ones.

    xxhash digests are computed only where that library is installed.
    """

    def __init__(self, expected: Expected) -> None:
        digests = ((name, wanted, _digest(name)) for name, wanted in expected.hashes.items())
        self._digests = [(name, wanted, digest) for name, wanted, digest in digests if digest is not None]

    def add(self, data: Buffer) -> None:
        """Update the digests with the next bytes."""
        for _, _, digest in self._digests:
            digest.update(data)

    def check(self, *, shard: str) -> int:
        """Compare the digests once all bytes were added; return how many of the hashes are supported here.

        Raises `ShardError` if a digest differs.
        """
        for name, wanted, digest in self._digests:
            if digest.hexdigest() != wanted.lower():
                msg = f"the index.json beside it says {name} {wanted:.80}, and its bytes have {digest.hexdigest()}"
                raise ShardError(msg, shard=shard, byte=0, hint=STALE)
        return len(self._digests)


def check_hashes(data: Iterable[Buffer], expected: Expected, *, shard: str) -> int:
    """Compare the bytes of a whole shard with its hashes; return how many of these are supported here.

    Raises `ShardError` if a digest differs.
    """
    hashes = Hashes(expected)
    if expected.hashes:
        for part in data:
            hashes.add(part)
    return hashes.check(shard=shard)


def _digest(name: str) -> Any:
    """Return a hash object of this name; None if no installed library has it."""
    if name in hashlib.algorithms_available and not name.startswith("shake_"):
        return hashlib.new(name, usedforsecurity=False)
    if name not in _XXHASHES:
        return None
    try:
        import xxhash  # noqa: PLC0415  # optional

        return getattr(xxhash, name)()
    except ImportError:
        return None  # counts, sizes and other hashes must suffice; `shoal index --checksum` reports it


def _of_streaming(shards: Sequence[Mapping[str, Any]], path: str) -> Manifest:
    formats = {json.dumps(_streaming_format(about), sort_keys=True) for about in shards}
    if len(formats) > 1:
        kinds = sorted({str(about["format"]) for about in shards})
        msg = f"it names shards of {len(formats)} formats or schemas ({', '.join(kinds)})"
        raise UsageError(msg, hint="name the shards of one format by a glob, with format=")
    name, options = json.loads(next(iter(formats)))
    packings = {about.get("compression") for about in shards}
    codecs = {_CODECS[str(packing).partition(":")[0]] for packing in packings if packing}
    if len(codecs) > 1:
        msg = f"its shards are compressed in {len(codecs)} ways"
        raise UsageError(msg, hint="name the shards of one kind by a glob")
    packed = format_named(f"{name}.{codecs.pop()}", options) if codecs else None
    return Manifest(format_named(name, options), tuple(_streaming_shard(about, path) for about in shards), packed)


def _streaming_format(about: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name and options of the format of one of Streaming's shards."""
    kind = str(about["format"])
    if kind not in _STREAMING or about["version"] != 2:
        msg = f"it names shards of the format {kind!r}, version {about['version']!r}"
        raise UsageError(msg, hint=f"shoal reads shards of {', '.join(_STREAMING)}, version 2")
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
    forms: list[Any] = []
    for form in (about["raw_data"], about.get("zip_data")):
        if form is None:
            break
        hashes = {str(name): str(digest) for name, digest in dict(form.get("hashes") or {}).items()}
        forms += [_safe(form["basename"], path), Expected(int(form["bytes"]), int(about["samples"]), hashes)]
    return NamedShard(*forms)


def _of_litdata(found: Mapping[str, Any], path: str) -> Manifest:
    if found["config"].get("item_loader") == "ParquetLoader":
        return Manifest(format_named("parquet"), _litdata_shards(found, path))
    reader = LitData(found)
    # Looked up by name and options, so that equal formats are one object.
    plain = format_named(reader.name, options_of(reader))
    packed = format_named(f"{reader.name}.{reader.whole_codec}", options_of(reader)) if reader.whole_codec else None
    return Manifest(plain, _litdata_shards(found, path), packed)


def _litdata_shards(found: Mapping[str, Any], path: str) -> tuple[NamedShard, ...]:
    """Return the chunks in their order. Of compressed chunks the manifest has the decompressed size.

    LitData's reader leaves decompressed chunks, under another name, in directories that it read locally.
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
    """Return a shard's name, refusing one that leaves the directory of the manifest."""
    text = str(name).replace("\\", "/")
    if not text or text.startswith("/") or ".." in text.split("/") or any(ord(letter) < 32 for letter in text):
        raise ValueError(f"{path} names a shard {name!r:.200}")
    return text
