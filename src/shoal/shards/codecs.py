"""Compressed shards: which suffix means which codec, and decompression that never gives more than a limit."""

from __future__ import annotations

import bz2
import importlib
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from shoal.errors import UsageError
from shoal.shards.protocol import Buffer

__all__ = ["CODECS", "CODEC_OF_SUFFIX", "CodecError", "Member", "decompress", "decompress_members"]

_PIECE_BYTES = 1 << 20
_ZSTD_INPUT_BYTES = 512  # at a time: a block of 128 KiB can hide in 4 bytes, so this gives at most 16 MiB


# What was decompressed next, or, behind a member, where in the compressed bytes it ends.
_Part = bytes | int


class CodecError(ValueError):
    """Bytes that are not what a codec writes, or that give more than is allowed."""


class Member(NamedTuple):
    """One of several that were compressed apart: where it ends, in the compressed bytes and in what they hold."""

    end_byte: int
    content_end_byte: int


def decompress(codec: str, data: Buffer, *, limit_bytes: int) -> bytearray:
    """What the codec made ``data`` of; at most ``limit_bytes`` and some MiB are ever in memory.

    Several members or frames one after the other are one content, as the command lines of the codecs have it.

    Raises
    ------
    CodecError
        The bytes are damaged or cut short, or give more than ``limit_bytes``.
    UsageError
        The library of the codec is not installed.
    """
    return decompress_members(codec, data, limit_bytes=limit_bytes)[0]


def decompress_members(codec: str, data: Buffer, *, limit_bytes: int) -> tuple[bytearray, list[Member]]:
    """The same, and where its members or frames end; the last one ends with ``data``, padding included.

    Raises
    ------
    CodecError
        The bytes are damaged or cut short, or give more than ``limit_bytes``.
    UsageError
        The library of the codec is not installed.
    """
    result = bytearray()
    members: list[Member] = []
    try:
        for piece in CODECS[codec](memoryview(data), limit_bytes):
            if isinstance(piece, int):
                members.append(Member(piece, len(result)))
                continue
            if len(result) + len(piece) > limit_bytes:
                raise _too_much(limit_bytes)
            result += piece
    except (zlib.error, lzma.LZMAError, OSError, EOFError) as error:
        raise CodecError(str(error)) from None
    return result, [*members[:-1], Member(len(data), len(result))]


def _gzip(data: memoryview, limit_bytes: int) -> Iterator[_Part]:  # noqa: ARG001  # bounded by its pieces
    num_bytes = len(data)
    while len(data):
        member = zlib.decompressobj(wbits=31)
        rest: Buffer = data
        while not member.eof:
            piece = member.decompress(rest, _PIECE_BYTES)
            rest = member.unconsumed_tail
            if not piece and not rest and not member.eof:
                raise _cut_short()
            yield piece
        data = _without_padding(data[len(data) - len(member.unused_data) :])
        yield num_bytes - len(data)


def _keeping_input(new: Callable[[], Any]) -> Callable[[memoryview, int], Iterator[_Part]]:
    """Codecs of the standard library that keep what they have not used yet."""

    def pieces(data: memoryview, limit_bytes: int) -> Iterator[_Part]:  # noqa: ARG001
        num_bytes = len(data)
        while len(data):
            member = new()
            yield member.decompress(data, _PIECE_BYTES)
            while not member.eof:
                if member.needs_input:
                    raise _cut_short()
                yield member.decompress(b"", _PIECE_BYTES)
            data = _without_padding(data[len(data) - len(member.unused_data) :])
            yield num_bytes - len(data)

    return pieces


def _zstd(data: memoryview, limit_bytes: int) -> Iterator[_Part]:  # noqa: ARG001
    num_bytes = len(data)
    library = _library("zstandard", "zstd")
    try:
        while len(data):
            frame = library.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
            used = 0
            while not frame.eof:
                if used >= len(data):
                    raise _cut_short()
                yield frame.decompress(data[used : used + _ZSTD_INPUT_BYTES])
                used = min(used + _ZSTD_INPUT_BYTES, len(data))
            data = data[used - len(frame.unused_data) :]
            yield num_bytes - len(data)
    except library.ZstdError as error:
        raise CodecError(str(error)) from None


def _brotli(data: memoryview, limit_bytes: int) -> Iterator[_Part]:  # noqa: ARG001
    library = _library("brotli", "brotli")
    stream = library.Decompressor()
    try:
        yield stream.process(bytes(data), output_buffer_limit=_PIECE_BYTES)
        while not stream.is_finished():
            piece = stream.process(b"", output_buffer_limit=_PIECE_BYTES)
            if not piece and stream.can_accept_more_data():
                raise _cut_short()
            yield piece
    except library.error as error:
        raise CodecError(str(error)) from None


def _snappy(data: memoryview, limit_bytes: int) -> Iterator[_Part]:
    """One raw block, whose size is written before it."""
    library = _library("cramjam", "snappy")
    try:
        if library.snappy.decompress_raw_len(data) > limit_bytes:
            raise _too_much(limit_bytes)
        yield bytes(library.snappy.decompress_raw(data))
    except library.DecompressionError as error:
        raise CodecError(str(error)) from None


def _without_padding(data: memoryview) -> memoryview:
    """Nothing where only zeros are left, with which some tools fill up a block."""
    return data[:0] if len(data) and not bytes(data).strip(b"\0") else data


def _cut_short() -> CodecError:
    return CodecError("it ends in the middle of its compressed data")


def _too_much(limit_bytes: int) -> CodecError:
    return CodecError(f"it holds more than {limit_bytes} bytes")


def _library(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        msg = f"shards compressed with {extra} need {module}, which is not installed"
        raise UsageError(msg, hint=f"pip install 'shoal[{extra}]'") from None


CODECS: Mapping[str, Callable[[memoryview, int], Iterator[_Part]]] = MappingProxyType(
    {
        "gz": _gzip,
        "bz2": _keeping_input(bz2.BZ2Decompressor),
        "xz": _keeping_input(lzma.LZMADecompressor),
        "zst": _zstd,
        "br": _brotli,
        "snappy": _snappy,
    }
)

CODEC_OF_SUFFIX: Mapping[str, str] = MappingProxyType({**{f".{codec}": codec for codec in CODECS}, ".zstd": "zst"})
