"""Files of tokens for training language models: the files of nanoGPT, llm.c and Megatron-LM.

- nanoGPT: tokens without a header, uint16 by convention.
- llm.c and modded-nanogpt: 256 int32 of header (magic number, version, number of tokens), and the tokens.
- Megatron-LM and NeMo: tokens without a header in ``a.bin``; ``a.idx`` beside it has their type and the lengths of
  documents (`shoal.formats.rows.megatron_index`).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError, UsageError
from shoal.formats.field_columns import Columns, Kind
from shoal.formats.rows.megatron_index import document_borders, megatron_dtype
from shoal.formats.rows.offset_table import offset_crcs
from shoal.formats.rows.records import BadRecordError, CutRecords, borders_in
from shoal.formats.shard_format import Format, ReadBytes, Records, Sample, Span
from shoal.index.cutting import even_cuts
from shoal.index.shard_scan import Buffer, ShardScan

_HEADER_BYTES = 256 * 4
_MAGIC_BYTES = 3 * 4
_LONGEST = 1 << 40
_OF_MAGIC = {20240520: (1, "uint16"), 20240801: (7, "uint32")}  # version and type: GPT-2's and Llama 3's tokens
_KINDS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
_COPY = "an unfinished copy? copy the file again"
_NO_DOCUMENTS = "only the .idx of Megatron-LM says where documents begin; Tokens(length) reads windows of any file"


class Tokens(Format):
    """The format of files of tokens (``.bin``): nanoGPT, llm.c, modded-nanogpt, Megatron-LM; a sample has ``tokens``.

    ``Tokens(1024)`` gives windows of 1,025 tokens, inputs and targets: a window begins every 1,024 tokens, so each
    token but the first of a file is a target once. Documents begin and end anywhere in a window. The tokens at the end
    of a file that fill no window are left out and counted in the index, as ``tokens_left_over``. ``Tokens()`` gives the
    documents of Megatron-LM, with the column ``num_tokens`` for `pack_sequences`; empty documents are left out and
    counted.

    ``dtype`` is the type of tokens in files of nanoGPT, which do not record the type; the header of llm.c and the
    ``.idx`` beside a file of Megatron-LM record the type. Indexing reads only the header and the ``.idx``.

    Raises
    ------
    UsageError
        ``length`` is not an integer of at least 1, or ``dtype`` is not a type of integers.

    Examples
    --------
    >>> windows = shoal.open("tokens.bin", format=shoal.formats.Tokens(1024))
    >>> len(windows), windows[1]["tokens"][:4]
    (4, array([1024, 1025, 1026, 1027], dtype=uint16))
    """

    name: str = "tokens"
    suffixes: tuple[str, ...] = (".bin",)
    has_columns = has_sidecar = True

    def __init__(self, length: int | None = None, *, dtype: str = "uint16") -> None:
        self.length = None if length is None else _window_length(length)
        self.dtype = _kind_of(dtype)
        usual = {"length": None, "dtype": "uint16"}
        self.options = {name: getattr(self, name) for name, value in usual.items() if getattr(self, name) != value}

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Find the windows of a file with no index beside it; reads the header alone.

        Raises `ShardError` if the header contradicts the size of the file, or if documents are requested.
        """
        if self.length is None:
            raise ShardError("this file has no .idx beside it", shard=shard, byte=0, hint=_NO_DOCUMENTS)
        return scan_windows(self._run(read, num_bytes, shard), self.length)

    def scan_sidecar(self, sidecar: ReadBytes, sidecar_bytes: int, num_bytes: int, *, shard: str) -> ShardScan:
        """Find the samples of a file by the ``.idx`` beside it: for windows read its header, for documents all of it.

        ``notes`` count ``empty_documents``. Raises `ShardError` if it is no such index, or belongs to another file.
        """
        dtype = megatron_dtype(sidecar, sidecar_bytes, shard=shard)
        run = _whole(dtype, 0, num_bytes, shard)
        if self.length is not None:
            return scan_windows(run, self.length)
        borders = document_borders(sidecar, sidecar_bytes, num_bytes, itemsize=run.stored.itemsize, shard=shard)
        starts = np.unique(borders)
        num_empty = len(borders) - len(starts)
        notes = {"empty_documents": num_empty} if num_empty else {}
        return ShardScan(starts, offset_crcs(starts), head=run._asdict(), notes=notes)

    def _run(self, read: ReadBytes, num_bytes: int, shard: str) -> TokenRun:
        if num_bytes >= _MAGIC_BYTES:
            magic, version, num_tokens = np.frombuffer(read(0, _MAGIC_BYTES), "<i4").tolist()
            if magic in _OF_MAGIC:
                known, dtype = _OF_MAGIC[magic]
                if num_bytes < _HEADER_BYTES:
                    msg = f"this file of {num_bytes} bytes ends within its header of {_HEADER_BYTES}"
                    raise ShardError(msg, shard=shard, byte=num_bytes, hint=_COPY)
                run = _whole(dtype, _HEADER_BYTES, num_bytes, shard)
                if version != known or num_tokens != run.num_tokens:
                    stated = f"version {version} with {num_tokens} tokens"
                    expected = f"{run.num_tokens} after a header of version {known}"
                    msg = f"the header says {stated}, but the file has {expected}"
                    raise ShardError(msg, shard=shard, byte=4, hint=_COPY)
                return run
        return _whole(self.dtype, 0, num_bytes, shard)

    def parse(self, buffer: Buffer, span: Span) -> Records:
        """Open the bytes of consecutive windows, or documents.

        Raises `ShardError` if the bytes do not hold that many of them.
        """
        if self.length is not None:
            return WindowRecords(buffer, span, self.length)
        starts = borders_in(buffer, span, partial(_no_borders, span), what="documents")
        run = TokenRun.of_head(span.head)
        crcs = partial(offset_crcs, starts, span.first_byte)
        return CutRecords(buffer, starts, span, decode=partial(_decoded, run), crcs=crcs)


def options_in_name(name: str) -> dict[str, Any] | None:
    """Return the options in a name, for the command line and mixture files; None if the name has no options.

    >>> options_in_name("tokens:1024"), options_in_name("tokens:1024:int32"), options_in_name("tokens")
    ({'length': 1024}, {'length': 1024, 'dtype': 'int32'}, None)
    """
    word, _, rest = name.partition(":")
    length, _, dtype = rest.partition(":")
    if word != Tokens.name or not length.isdecimal():
        return None
    return {"length": int(length), **({"dtype": dtype} if dtype else {})}


def token_itemsize(head: Mapping[str, Any]) -> int:
    """Return the bytes of a token by the head of a shard."""
    return TokenRun.of_head(head).stored.itemsize


def _whole(dtype: str, first_byte: int, num_bytes: int, shard: str) -> TokenRun:
    """Return the tokens of a file from a byte on; raises `ShardError` if it ends within a token."""
    num_tokens, rest = divmod(num_bytes - first_byte, np.dtype(dtype).itemsize)
    if rest:
        msg = f"this file of {num_bytes} bytes ends within a token of {dtype}"
        raise ShardError(msg, shard=shard, byte=num_bytes - rest, hint=f"another dtype=? {_COPY}")
    return TokenRun(dtype, first_byte, num_tokens)


def _window_length(length: object) -> int:
    try:
        number = operator.index(length)  # type: ignore[arg-type]  # raises TypeError if it is not an integer
    except TypeError:
        number = 0
    if not 1 <= number <= _LONGEST:
        msg = f"Tokens({length!r}): a window must have from 1 to 2**40 tokens, and the token after them"
        raise UsageError(msg, hint="give the context length, 1024 for instance")
    return number


def _kind_of(dtype: object) -> str:
    try:
        kind = str(np.dtype(dtype))  # type: ignore[call-overload]  # raises TypeError if it is none
    except TypeError:
        kind = ""
    if kind not in _KINDS:
        raise UsageError(f"Tokens(dtype={dtype!r}): tokens are integers", hint=f"one of {', '.join(_KINDS)}")
    return kind


def _decoded(run: TokenRun, data: bytes) -> Sample:
    if len(data) % run.stored.itemsize:
        raise BadRecordError(f"these {len(data)} bytes of a document end within a token of {run.dtype}")
    return {FIELD: np.frombuffer(data, run.stored).astype(run.dtype)}


def _no_borders(span: Span) -> list[int]:
    msg = "nothing in the file says where documents begin, and this index does not either"
    raise ShardError(msg, shard=span.shard, byte=span.first_byte, hint="an index keeps up to 10**8 document borders")


FIELD = "tokens"
_PIECE_BYTES = 1 << 16


class TokenRun(NamedTuple):
    """The tokens of a file: their type, the byte of the first, and how many there are; the head of its shard."""

    dtype: str
    first_byte: int
    num_tokens: int

    @classmethod
    def of_head(cls, head: Mapping[str, Any]) -> TokenRun:
        """Return the run of tokens that the metadata of a file describes."""
        return cls(head["dtype"], head["first_byte"], head["num_tokens"])

    @property
    def stored(self) -> np.dtype[Any]:
        """Type of the stored tokens."""
        return np.dtype(self.dtype).newbyteorder("<")


def _starts(run: TokenRun, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pieces of a file as numbers of windows, and as bytes; both shape (num_pieces + 1,)."""
    window_bytes = length * run.stored.itemsize
    cuts = even_cuts(max(0, run.num_tokens - 1) // length, size=max(1, _PIECE_BYTES // window_bytes))
    starts = run.first_byte + window_bytes * cuts
    if len(starts) > 1:
        starts[-1] += run.stored.itemsize
    return cuts, starts


def scan_windows(run: TokenRun, length: int) -> ShardScan:
    """Return the windows of a file, from arithmetic alone; O(pieces).

    ``notes`` count the tokens that are in no window as ``tokens_left_over``.
    """
    cuts, starts = _starts(run, length)
    ends = starts[1:] + run.stored.itemsize
    ends[-1:] = starts[-1:][: len(ends)]
    num_windows = int(cuts[-1])
    left = run.num_tokens - (num_windows * length + 1 if num_windows else 0)
    return ShardScan(
        starts,
        offset_crcs(starts),
        head=run._asdict(),
        notes={"tokens_left_over": left} if left else {},
        piece_samples=np.diff(cuts),
        piece_decoded_bytes=np.diff(cuts) * (length + 1) * run.stored.itemsize,
        piece_ends=ends,
    )


class WindowRecords:
    """The windows of consecutive pieces, handed out by number, or all of them as a column."""

    def __init__(self, buffer: Buffer, span: Span, length: int) -> None:
        self._span, self._length = span, length
        self._run = run = TokenRun.of_head(span.head)
        expected = (span.num_samples * length + 1) * run.stored.itemsize
        if len(buffer) != expected:
            msg = (
                f"{span.num_samples} windows of {length + 1} tokens have {expected} bytes, but {len(buffer)} were read"
            )
            raise ShardError(
                msg, shard=span.shard, byte=span.first_byte, hint="index the file again, if it has changed"
            )
        self._tokens: NDArray[Any] = np.frombuffer(buffer, run.stored)

    def __len__(self) -> int:
        return self._span.num_samples

    def layout_crcs(self) -> NDArray[np.uint32]:
        """Return the CRC of the offsets of each piece; shape (num_pieces,)."""
        cuts, starts = _starts(self._run, self._length)
        window_bytes = self._length * self._run.stored.itemsize
        first = (self._span.first_byte - self._run.first_byte) // window_bytes
        low, high = np.searchsorted(cuts, [first, first + len(self)])
        return offset_crcs(starts[low : high + 1])

    def sample(self, number: int) -> Sample:
        """Return window ``number``; O(length)."""
        at = number * self._length
        return {FIELD: self._tokens[at : at + self._length + 1].astype(self._run.dtype)}

    def columns(self) -> Columns:
        """Return the windows as rows of one array, which overlap in memory."""
        rows = np.lib.stride_tricks.sliding_window_view(self._tokens, self._length + 1)[:: self._length]
        kind = Kind("array", np.dtype(self._run.dtype), (self._length + 1,))
        return Columns(((FIELD, kind),), (rows,))
