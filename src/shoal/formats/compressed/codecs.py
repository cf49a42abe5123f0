"""Codecs of compressed shards by file suffix, and decompression that never yields more than a limit."""

from __future__ import annotations

import bz2
import importlib
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from shoal.errors import UsageError
from shoal.hints import pip_install
from shoal.index.shard_scan import Buffer

_PART_BYTES = 1 << 20
_ZSTD_INPUT_BYTES = 512  # at a time: a block of 128 KiB can hide in 4 bytes, so this gives at most 16 MiB
_XZ_MEMORY_BYTES = 256 << 20  # `xz -9` takes 65 MiB to decompress; a header may ask for 1.5 GiB

_SNAPPY_FRAMES = b"\xff\x06\x00\x00sNaPpY"
_SNAPPY_CHUNK_BYTES = 1 << 16
_SNAPPY_MOST_TIMES = 32  # 64 bytes take at least 3, a ratio of 22
_BEGINNINGS = {
    b"\x1f\x8b": "gz",
    b"BZh": "bz2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zst",
    **dict.fromkeys((b"\x78\x01", b"\x78\x9c", b"\x78\xda"), "zlib"),  # as TensorFlow writes it, by its options alone
}

# The next decompressed bytes, or, after a member, its end in the compressed bytes.
_Part = bytes | int


class CodecError(ValueError):
    """Bytes that are not valid compressed data, or that decompress to more than the limit.

    ``member_byte`` is the compressed byte where the member with the error begins.
    """

    member_byte: int = 0


class TooMuchError(CodecError):
    """Bytes that decompress to more than ``limit_bytes``."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"it holds more than {limit_bytes} bytes")
        self.limit_bytes = limit_bytes


def limit_hint(inner: str = "FORMAT", codec: str = "CODEC") -> str:
    """Return the hint for a shard with more content than is allowed, given the class of its format inside."""
    call = f'format=shoal.formats.Compressed(shoal.formats.{inner}(), "{codec}", limit_bytes=...)'
    return f"{call} allows more, if it is meant to hold so much; the limit guards against a file that fills the memory"


def packed_hint(start: Buffer, format_name: str) -> str | None:
    r"""Return a hint for a shard that begins like a codec's output though its name does not say so; else None.

    >>> packed_hint(b"\x1f\x8b\x08", "tar")
    'it looks compressed: format="tar.gz" reads it so'
    """
    codec = next((codec for magic, codec in _BEGINNINGS.items() if bytes(start).startswith(magic)), None)
    return codec and f'it looks compressed: format="{format_name}.{codec}" reads it so'


def decompress(codec: str, data: Buffer, *, limit_bytes: int) -> bytearray:
    """Decompress ``data``; at most ``limit_bytes`` and some MiB are ever in memory.

    Several members or frames one after another are one content, as for the command-line tools of the codecs.

    Raises `CodecError`: the bytes are damaged or cut short, or give more than ``limit_bytes``; `UsageError`: the
    library of the codec is not installed.
    """
    result = bytearray()
    for part in decompress_parts(codec, [data], limit_bytes=limit_bytes):
        result += part
    return result


def decompress_parts(codec: str, parts: Iterable[Buffer], *, limit_bytes: int) -> Iterator[bytes]:
    """Decompress bytes that come in parts, to parts of some MiB at most; neither side is held as a whole.

    The exception is snappy in one block, which has no parts. Raises as `decompress` does, after the parts before the
    error.
    """
    all_parts = parts_and_member_ends(codec, parts, limit_bytes=limit_bytes)
    return (part for part in all_parts if not isinstance(part, int))


def parts_and_member_ends(codec: str, parts: Iterable[Buffer], *, limit_bytes: int) -> Iterator[_Part]:
    """Decompress like `decompress_parts`, and yield after each member its end in the compressed bytes, with padding.

    A part is released once the next one has arrived.
    """
    num_bytes = member_byte = 0
    try:
        for part in CODECS[codec](_Stored(parts), limit_bytes):
            if isinstance(part, int):
                member_byte = part
            else:
                num_bytes += len(part)
                if num_bytes > limit_bytes:
                    raise TooMuchError(limit_bytes)
            yield part
    except (CodecError, zlib.error, lzma.LZMAError, EOFError) as error:
        named = error if isinstance(error, CodecError) else CodecError(str(error))
        named.member_byte = member_byte
        raise named from None


class _Stored:
    """Compressed bytes that come in parts: taken from the front, and put back if a member ended earlier."""

    def __init__(self, parts: Iterable[Buffer]) -> None:
        self._parts = iter(parts)
        self._part, self._at = memoryview(b""), 0
        self.position = 0

    def take(self, most_bytes: int = _PART_BYTES) -> memoryview:
        """Take some of the next bytes; none at the end."""
        while self._at == len(self._part):
            part = next(self._parts, None)
            if part is None:
                return memoryview(b"")
            self._part, self._at = memoryview(part), 0
        taken = self._part[self._at : self._at + most_bytes]
        self._at += len(taken)
        self.position += len(taken)
        return taken

    def give_back(self, num_bytes: int) -> None:
        """Put back the last ``num_bytes``, unused."""
        self._at -= num_bytes
        self.position -= num_bytes

    def exactly(self, num_bytes: int) -> bytes:
        """Take the next ``num_bytes``, fewer at the end."""
        parts = []
        while num_bytes and (part := self.take(num_bytes)):
            parts.append(part)
            num_bytes -= len(part)
        return b"".join(parts)

    def rest(self) -> bytes:
        """Take the rest."""
        return b"".join(iter(self.take, b""))

    def skip_padding(self) -> None:
        """Skip zeros: some tools fill up a block with them.

        No member of any codec begins with a zero; anything else is left for the reader of the next member.
        """
        while taken := self.take():
            kept = bytes(taken).lstrip(b"\0")
            if kept:
                self.give_back(len(kept))
                return


def _deflated(wbits: int) -> Callable[[_Stored, int], Iterator[_Part]]:
    """Return the decompressor of gzip members, or of zlib streams."""

    def parts(stored: _Stored, limit_bytes: int) -> Iterator[_Part]:  # noqa: ARG001  # bounded by its parts
        while rest := stored.take():
            member = zlib.decompressobj(wbits)
            while not member.eof:
                part = member.decompress(rest, _PART_BYTES)
                rest = memoryview(member.unconsumed_tail)
                if not rest and not member.eof:
                    rest = stored.take()
                if not part and not rest and not member.eof:
                    raise _cut_short()
                yield part
            stored.give_back(len(member.unused_data))
            stored.skip_padding()
            yield stored.position

    return parts


def _keeping_input(new: Callable[[], Any]) -> Callable[[_Stored, int], Iterator[_Part]]:
    """Return the decompressor of a standard library codec that keeps its unused input."""

    def decompressed(member: Any, data: Buffer) -> bytes:
        """Return the next part. bz2 reports damage as an OSError, which would look like a failed read."""
        try:
            part: bytes = member.decompress(data, _PART_BYTES)
        except OSError as error:
            raise CodecError(str(error)) from None
        return part

    def parts(stored: _Stored, limit_bytes: int) -> Iterator[_Part]:  # noqa: ARG001
        while taken := stored.take():
            member = new()
            yield decompressed(member, taken)
            while not member.eof:
                more: Buffer = b""
                if member.needs_input and not (more := stored.take()):
                    raise _cut_short()
                yield decompressed(member, more)
            stored.give_back(len(member.unused_data))
            stored.skip_padding()
            yield stored.position

    return parts


def _zstd(stored: _Stored, limit_bytes: int) -> Iterator[_Part]:  # noqa: ARG001
    library = _library("zstandard", "zstd")
    try:
        while taken := stored.take(_ZSTD_INPUT_BYTES):
            frame = library.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
            yield frame.decompress(taken)
            while not frame.eof:
                if not (taken := stored.take(_ZSTD_INPUT_BYTES)):
                    raise _cut_short()
                yield frame.decompress(taken)
            stored.give_back(len(frame.unused_data))
            yield stored.position
    except library.ZstdError as error:
        raise CodecError(str(error)) from None


def _brotli(stored: _Stored, limit_bytes: int) -> Iterator[_Part]:  # noqa: ARG001
    library = _library("brotli", "brotli")
    stream = library.Decompressor()
    try:
        yield stream.process(bytes(stored.take()), output_buffer_limit=_PART_BYTES)
        while not stream.is_finished():
            more = bytes(stored.take()) if stream.can_accept_more_data() else b""
            part = stream.process(more, output_buffer_limit=_PART_BYTES)
            if not part and not more and stream.can_accept_more_data():
                raise _cut_short()
            yield part
        if len(stored.take()):  # the library itself refuses bytes behind the end in its last input
            raise CodecError("other bytes follow its compressed data")
    except library.error as error:
        raise CodecError(str(error)) from None


def _snappy(stored: _Stored, limit_bytes: int) -> Iterator[_Part]:
    """Decompress one raw block that begins with its size, as Streaming writes it; or frames, as command lines do."""
    library = _library("cramjam", "snappy")
    head = stored.exactly(len(_SNAPPY_FRAMES))
    try:
        if head == _SNAPPY_FRAMES:
            for chunk in _snappy_chunks(stored):
                # A chunk gives its decompressed size, at most 64 KiB; the library verifies its checksum.
                if chunk[0] == 0 and library.snappy.decompress_raw_len(chunk[8:]) > _SNAPPY_CHUNK_BYTES:
                    raise TooMuchError(_SNAPPY_CHUNK_BYTES)
                yield bytes(library.snappy.decompress(_SNAPPY_FRAMES + chunk))
            return
        data = head + stored.rest()
        num_bytes = library.snappy.decompress_raw_len(data)
        if num_bytes > limit_bytes:
            raise TooMuchError(limit_bytes)
        if num_bytes > _SNAPPY_MOST_TIMES * len(data):  # a false size would be allocated before the error
            raise CodecError(f"its header claims {num_bytes} decompressed bytes, too many for {len(data)} bytes")
        yield bytes(library.snappy.decompress_raw(data))
    except library.DecompressionError as error:
        raise CodecError(str(error)) from None


def _snappy_chunks(stored: _Stored) -> Iterator[bytes]:
    """Yield the data chunks of framed snappy: one byte of kind, three of size, and that many bytes."""
    while head := stored.exactly(4):
        size = int.from_bytes(head[1:], "little")
        chunk = head + stored.exactly(size)
        if len(chunk) < 4 + size or len(head) < 4:
            raise _cut_short()
        if head[0] < 2:
            yield chunk
        elif head[0] < 128:
            msg = f"a chunk at byte {stored.position - len(chunk)} is of the kind {head[0]}, which is not known"
            raise CodecError(msg)


def _cut_short() -> CodecError:
    return CodecError("it ends in the middle of its compressed data")


def _library(module: str, codec: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        msg = f"shards compressed with {codec} need {module}, which is not installed"
        raise UsageError(msg, hint=pip_install(module)) from None


CODECS: Mapping[str, Callable[[_Stored, int], Iterator[_Part]]] = MappingProxyType(
    {
        "gz": _deflated(31),
        "zlib": _deflated(15),
        "bz2": _keeping_input(bz2.BZ2Decompressor),
        "xz": _keeping_input(partial(lzma.LZMADecompressor, memlimit=_XZ_MEMORY_BYTES)),
        "zst": _zstd,
        "br": _brotli,
        "snappy": _snappy,
    }
)

CODEC_OF_SUFFIX: Mapping[str, str] = MappingProxyType({**{f".{codec}": codec for codec in CODECS}, ".zstd": "zst"})
