"""Manifests: the ``index.json`` beside shards, which lists the shards, their format, their sizes and sample counts.

MosaicML Streaming and LitData write a manifest per directory. Every shard must exist and match its manifest
(`shoal.formats.metadata.scanning.checked_scan`).
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
    """Expected bytes and samples of a shard (None if not stated), and its digests by hash name."""

    num_bytes: int | None = None
    num_samples: int | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NamedShard:
    """One shard of a manifest: file name and expected contents, and the same for its compressed form, if any.

    As a rule one of the two forms exists; Streaming's local caches have both.
    """

    name: str
    expected: Expected
    packed_name: str | None = None
    packed: Expected | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """The shards of an ``index.json``, in its order, and their format; ``packed_format`` if they are compressed."""

    format: Format
    shards: tuple[NamedShard, ...]
    packed_format: Format | None = None


def read_manifest(data: Buffer, *, path: str) -> Manifest | None:
    """Parse a manifest; None for other JSON.

    Raises `SourceError` if the bytes are not JSON, for example because they were cut short, or if the manifest
    contradicts itself, mixes formats, or names shards that cannot be read.
    """
    try:
        document = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        msg = f"{path}: this index.json of {len(data)} bytes is not JSON: {reason}"
        hint = "was it cut short? copy it again; or remove it, or name the shards by a glob"
        raise SourceError(msg, hint=hint) from None
    with _readable(path, "it begins like the index.json of a dataset", "a glob, with format="):
        if _is_streaming(document) and document["shards"]:
            return _of_streaming(document["shards"], path)
        if _is_litdata(document):
            return _of_litdata(document, path)
    return None


def named_shards(data: Buffer, *, path: str) -> tuple[NamedShard, ...]:
    """Return the shards of a manifest in its order, of any format; () if the bytes are not a manifest.

    Raises `SourceError` if they begin like a manifest, but cannot be read.
    """
    with _readable(path, "it says the order of the shards", "a list or a glob"):
        document = json.loads(bytes(data))
        if _is_streaming(document):
            return tuple(_streaming_shard(shard, path) for shard in document["shards"])
        if _is_litdata(document):
            return _litdata_shards(document, path)
    return ()


@contextmanager
def _readable(path: str, what: str, instead: str) -> Iterator[None]:
    """Turn the errors of an unreadable manifest into `SourceError`."""
    try:
        yield
    except UsageError as error:
        raise SourceError(f"{path}: {error.message}", hint=error.hint) from None
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        msg = f"{path}: {what}, and cannot be read: {type(error).__name__}: {error}"
        raise SourceError(msg, hint=f"copy the manifest again; or name the shards by {instead}") from None


def _is_streaming(document: Any) -> bool:
    return isinstance(document, dict) and isinstance(document.get("shards"), list)


def _is_litdata(document: Any) -> bool:
    kinds = {"chunks": list, "config": dict}
    return isinstance(document, dict) and all(isinstance(document.get(name), kind) for name, kind in kinds.items())


class Hashes:
    """Running digests of a shard's bytes, for comparison with the expected digests.

    xxhash digests are computed only if that library is installed.
    """

    def __init__(self, expected: Expected) -> None:
        digests = ((name, hexdigest, _digest(name)) for name, hexdigest in expected.hashes.items())
        self._digests = [(name, hexdigest, digest) for name, hexdigest, digest in digests if digest is not None]

    def add(self, data: Buffer) -> None:
        """Update the digests with the next bytes."""
        for _, _, digest in self._digests:
            digest.update(data)

    def check(self, *, shard: str) -> int:
        """Compare the digests of all bytes, and return how many an installed library supports.

        Raises `ShardError` if a digest differs.
        """
        for name, hexdigest, digest in self._digests:
            if digest.hexdigest() != hexdigest.lower():
                msg = f"the {name} of the shard is {digest.hexdigest()}, but index.json says {hexdigest:.80}"
                raise ShardError(msg, shard=shard, byte=0, hint=STALE)
        return len(self._digests)


def check_hashes(data: Iterable[Buffer], expected: Expected, *, shard: str) -> int:
    """Compare the bytes of a whole shard with its hashes; returns and raises as `Hashes.check`."""
    hashes = Hashes(expected)
    for part in data if expected.hashes else ():
        hashes.add(part)
    return hashes.check(shard=shard)


def _digest(name: str) -> Any:
    """Return a hash object of this name; None if no installed library has it."""
    if name in hashlib.algorithms_available and not name.startswith("shake_"):
        return hashlib.new(name, usedforsecurity=False)
    try:
        import xxhash  # noqa: PLC0415  # optional
    except ImportError:
        return None  # counts, sizes and other hashes must suffice; `shoal index --checksum` reports it
    return getattr(xxhash, name)() if name in _XXHASHES else None


def _of_streaming(shards: Sequence[Mapping[str, Any]], path: str) -> Manifest:
    formats = {json.dumps(_streaming_format(shard), sort_keys=True) for shard in shards}
    if len(formats) > 1:
        kinds = sorted({str(shard["format"]) for shard in shards})
        msg = f"it names shards of {len(formats)} formats or schemas ({', '.join(kinds)})"
        raise UsageError(msg, hint="name the shards of one format by a glob, with format=")
    name, options = json.loads(next(iter(formats)))
    compressions = {shard.get("compression") for shard in shards}
    codecs = {_CODECS[str(compression).partition(":")[0]] for compression in compressions if compression}
    if len(codecs) > 1:
        msg = f"its shards are compressed in {len(codecs)} ways"
        raise UsageError(msg, hint="name the shards of one kind by a glob")
    packed = format_named(f"{name}.{codecs.pop()}", options) if codecs else None
    return Manifest(format_named(name, options), tuple(_streaming_shard(shard, path) for shard in shards), packed)


def _streaming_format(shard: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name and options of the format of a Streaming shard."""
    kind = str(shard["format"])
    if kind not in _STREAMING or shard["version"] != 2:
        msg = f"it names shards of the format {kind!r}, version {shard['version']!r}"
        raise UsageError(msg, hint=f"shoal reads shards of {', '.join(_STREAMING)}, version 2")
    if kind == "mds":
        return kind, {}
    if shard["newline"] not in ("\n", "\r\n"):
        msg = f"the lines of its shards end with {shard['newline']!r}"
        raise UsageError(msg, hint=r'lines that end with "\n" or "\r\n" are read')
    if kind == "json":
        return "jsonl", {}
    encodings = dict(zip(shard["column_names"], shard["column_encodings"], strict=True))
    types = {str(name): str(encoding) for name, encoding in encodings.items() if encoding != "str"}
    delimiter = {"csv": ",", "tsv": "\t"}.get(kind) or str(shard["separator"])
    return "csv", {"delimiter": delimiter, "quoted": False, "newline": shard["newline"], "types": types}


def _streaming_shard(shard: Mapping[str, Any], path: str) -> NamedShard:
    forms: list[Any] = []
    for form in (shard["raw_data"], shard.get("zip_data")):
        if form is None:
            break
        hashes = {str(name): str(digest) for name, digest in dict(form.get("hashes") or {}).items()}
        forms += [_safe(form["basename"], path), Expected(int(form["bytes"]), int(shard["samples"]), hashes)]
    return NamedShard(*forms)


def _of_litdata(document: Mapping[str, Any], path: str) -> Manifest:
    if document["config"].get("item_loader") == "ParquetLoader":
        return Manifest(format_named("parquet"), _litdata_shards(document, path))
    reader = LitData(document)
    # Looked up by name and options, so that equal formats are one object.
    plain = format_named(reader.name, options_of(reader))
    packed = format_named(f"{reader.name}.{reader.whole_codec}", options_of(reader)) if reader.whole_codec else None
    return Manifest(plain, _litdata_shards(document, path), packed)


def _litdata_shards(document: Mapping[str, Any], path: str) -> tuple[NamedShard, ...]:
    """Return the chunks in their order; for compressed chunks the manifest has the decompressed size."""
    # LitData's reader leaves decompressed chunks, under another name, in directories that it read locally.
    infix = f".{document['config']['compression']}." if whole_codec(document["config"]) else None
    shards = []
    for chunk in document["chunks"]:
        name = _safe(chunk["filename"], path)
        expected = Expected(int(chunk["chunk_bytes"]), int(chunk["chunk_size"]))
        if infix is None:
            shards.append(NamedShard(name, expected))
        else:
            shards.append(NamedShard(name.replace(infix, "."), expected, name, replace(expected, num_bytes=None)))
    return tuple(shards)


def _safe(name: Any, path: str) -> str:
    """Return the name of a shard; ValueError if it leaves the directory of the manifest."""
    text = str(name).replace("\\", "/")
    if not text or text.startswith("/") or ".." in text.split("/") or any(ord(letter) < 32 for letter in text):
        raise ValueError(f"{path} names a shard {name!r:.200}")
    return text
