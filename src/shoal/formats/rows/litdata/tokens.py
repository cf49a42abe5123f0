"""LitData's chunks of tokens: a table of offsets, then the tokens of each document.

Layout: ``u32 n``, ``u32 offsets[n + 1]`` counted from the start of the file, and the tokens of all documents one after
the other. LitData's ``TokensLoader`` reads the tokens in blocks of one length; documents begin and end anywhere in a
block. The loader and this format leave out the tokens after the last whole block of a chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError, UsageError
from shoal.formats.field_columns import Columns, Kind, Record
from shoal.formats.rows.litdata.leaves import array_type
from shoal.formats.rows.litdata.reader import NO_CHUNK, TOKENS_LOADER, config_of, whole_codec
from shoal.formats.rows.offset_table import offset_crcs, read_offsets, table_bytes
from shoal.formats.rows.records import BadRecordError, CutRecords, borders_in
from shoal.formats.shard_format import Format, ReadBytes, Sample, Span
from shoal.index.shard_scan import Buffer, ShardScan

_FIELD = "tokens"


class LitDataTokens(Format):
    """The format of the chunks that LitData optimises for its ``TokensLoader``; a sample is ``{"tokens": array}``.

    ``index`` is the content of the ``index.json`` beside the chunks. A sample is a block of ``block_size`` tokens, as
    from ``TokensLoader(block_size)``; the index lacks that number.

    Raises
    ------
    UsageError
        The index is invalid, or describes other chunks; ``block_size`` is less than 1.

    Examples
    --------
    >>> import json, pathlib
    >>> index = json.loads(pathlib.Path("litdata-tokens/index.json").read_text())
    >>> shoal.open("litdata-tokens", format=shoal.formats.LitDataTokens(index, block_size=4))[0]
    {'tokens': array([0, 1, 2, 2], dtype=uint16)}
    """

    name: str = "litdata_tokens"
    suffixes: tuple[str, ...] = (".bin",)
    has_columns = True

    def __init__(self, index: Mapping[str, Any], *, block_size: int) -> None:
        if block_size < 1:
            msg = f"block_size={block_size}: a block has at least one token"
            raise UsageError(msg, hint="give the context length, and one more where targets are the next tokens")
        config = config_of(index)
        leaves = [str(leaf) for leaf in config["data_format"]]
        dtype = array_type(leaves[0]) if len(leaves) == 1 else None
        if config["item_loader"] != TOKENS_LOADER or dtype is None:
            msg = f"these chunks hold {', '.join(leaves)} for {config['item_loader']}, not tokens"
            raise UsageError(msg, hint="shoal.formats.LitData reads chunks of items")
        self.whole_codec = whole_codec(config)
        self.block_size, self._type = block_size, dtype
        shape = (block_size,)
        self._record = Record(np.dtype([(_FIELD, dtype, shape)]), ((_FIELD, Kind("array", dtype, shape)),))
        config = {"data_format": leaves, "item_loader": TOKENS_LOADER}
        self.options = {"config": config, "block_size": block_size}

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Read the table of offsets, 4 bytes a document; the layout CRC of a sample covers its two offsets.

        ``notes`` count the tokens that fill no block as ``tokens_left_over``. Raises `ShardError` if the table
        contradicts itself or the size of the chunk, or a document ends within a token.
        """
        documents = read_offsets(read, num_bytes, shard=shard, least_bytes=0, hint=NO_CHUNK)
        first = table_bytes(len(documents) - 1)
        odd = np.flatnonzero((documents - first) % self._type.itemsize)
        if documents[0] != first or odd.size:
            number = int(odd[0]) if odd.size else 0
            msg = f"document {number} begins at byte {documents[number]}, where no token of {self._type} can begin"
            raise ShardError(msg, shard=shard, byte=4 * (1 + number), hint=NO_CHUNK)
        block_bytes = self._record.layout.itemsize
        num_blocks, left_bytes = divmod(num_bytes - first, block_bytes)
        starts = first + block_bytes * np.arange(num_blocks + 1, dtype=np.int64)
        left = {"tokens_left_over": left_bytes // self._type.itemsize} if left_bytes else {}
        return ShardScan(starts, offset_crcs(starts), notes=left)

    def record(self, head: Mapping[str, Any], *, shard: str) -> Record:  # noqa: ARG002
        """Return the layout of a block."""
        return self._record

    def parse(self, buffer: Buffer, span: Span) -> CutRecords:
        """Open the bytes of consecutive blocks.

        Raises `ShardError` if the bytes do not hold that many of them.
        """
        walk = partial(range, 0, len(buffer) + 1, self._record.layout.itemsize)
        starts = borders_in(buffer, span, walk, what="blocks")
        crcs = partial(offset_crcs, starts, span.first_byte)
        columns = partial(self._columns, buffer, starts)
        return CutRecords(buffer, starts, span, decode=self._decode, crcs=crcs, columns=columns)

    def _decode(self, data: bytes) -> Sample:
        if len(data) != self._record.layout.itemsize:
            msg = f"{self.block_size} tokens have {self._record.layout.itemsize} bytes, but this block has {len(data)}"
            raise BadRecordError(msg)
        return {_FIELD: np.frombuffer(data, self._type).copy()}

    def _columns(self, buffer: Buffer, starts: Sequence[int]) -> Columns | None:
        num_blocks = len(starts) - 1
        if starts[-1] - starts[0] != num_blocks * self._record.layout.itemsize:
            return None
        rows: NDArray[Any] = np.ndarray((num_blocks,), self._record.layout, buffer, starts[0])
        return Columns(self._record.kinds, (rows[_FIELD],))
