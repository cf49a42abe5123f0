"""LitData chunks: a table of offsets and items; the ``index.json`` beside the chunks describes the items.

Layout: ``u32 n``, ``u32 offsets[n + 1]`` counted from the start of the file, and the items. An item is a ``u32``
size for every leaf, then the leaves one after another. The index names the kind of each leaf and their tree.
Compressed items (`shoal.formats.rows.litdata.frame_chunks`) and items that are rows of a table
(`shoal.formats.rows.litdata.row_chunks`) have other chunk layouts, which identify themselves; one dataset may have
several kinds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from shoal.errors import ShardError, UsageError
from shoal.formats.compressed.packed_heads import unusable
from shoal.formats.rows.litdata.frame_chunks import FRAMES_MAGIC, frame_ends, inflated, parse_frames, scan_frames
from shoal.formats.rows.litdata.leaves import leaf_decoder
from shoal.formats.rows.offset_table import offset_crcs, read_offsets, table_bytes, walk_sizes
from shoal.formats.rows.records import BadRecordError, CutRecords, borders_in
from shoal.formats.shard_format import Format, ReadBytes, Records, Sample, Span
from shoal.formats.tables.arrow import Arrow, scan_messages
from shoal.formats.tables.arrow_values import python_value
from shoal.formats.tables.table_rows import OTHER_FILE, TableRecords
from shoal.index.shard_scan import Buffer, ShardScan

TOKENS_LOADER = "TokensLoader"
NO_CHUNK = "this is not a LitData chunk, or it is damaged, or compressed although the index.json does not say so"
_INDEX_HINT = "pass the contents of the index.json beside the chunks: LitData(json.loads(Path(...).read_text()))"
_MOST_DEPTH = 32
ITEMS_LOADER = "PyTreeLoader"
_LEVELS_INSIDE = ("batch", "sample")

Build = Callable[[Iterator[Any]], Any]


class LitData(Format):
    """The format of LitData's optimised datasets; ``index`` is the content of the ``index.json`` beside the chunks.

    An opened directory provides it automatically. A sample is the item, if that is a dict, else ``{"item": item}``.
    Tensors are numpy arrays, images are Pillow's; video, audio and files of other kinds are their bytes.
    ``allow_pickle`` reads leaves of pickles, which runs any code in them.

    Raises
    ------
    UsageError
        The index is invalid, or its chunks are encrypted, or hold tokens without items.

    Examples
    --------
    >>> import json, pathlib
    >>> index = json.loads(pathlib.Path("litdata/index.json").read_text())
    >>> shoal.open("litdata", format=shoal.formats.LitData(index, allow_pickle=False))[7]
    {'id': 7, 'text': 'document 7 word word word word word word word '}
    """

    name: str = "litdata"
    suffixes: tuple[str, ...] = (".bin",)
    needs_front = True  # the front holds the table of samples

    def __init__(self, index: Mapping[str, Any], *, allow_pickle: bool = False) -> None:
        self.allow_pickle = allow_pickle
        config = config_of(index)
        self.whole_codec = whole_codec(config)
        self._is_packed = not self.whole_codec and config.get("compression_level") == "sample"
        if config["item_loader"] != ITEMS_LOADER:
            msg = f"these chunks are for the item loader {config['item_loader']!r}, and have no items"
            hint = f"chunks of LitData's default, {ITEMS_LOADER}, are read"
            if config["item_loader"] == TOKENS_LOADER:
                hint = (
                    "say in Python how long a sample is, with what the index.json holds: format="
                    'shoal.formats.LitDataTokens(json.loads(Path("DIR/index.json").read_text()), block_size=2049)'
                )
            raise UsageError(msg, hint=hint)
        try:
            self.leaves = [str(leaf) for leaf in config["data_format"]]
            self.tree = json.loads(config["data_spec"])[1]
            num_leaves = sum(1 for _ in _leaves_of(self.tree, 0))
            if num_leaves != len(self.leaves) or not self.leaves:
                raise ValueError(f"its tree has {num_leaves} leaves, but it names the kinds of {len(self.leaves)}")
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise _no_index(error) from None
        packed = {"compression": "zstd", "compression_level": "sample"} if self._is_packed else {}
        self.options = {"config": {"data_format": self.leaves, "data_spec": json.dumps([1, self.tree]), **packed}}

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Read the table of offsets, 4 bytes a sample; the layout CRC of a sample covers its two offsets.

        Chunks of frames, and of rows, have pieces instead. Raises `ShardError` if the table contradicts itself or the
        size of the chunk.
        """
        if bytes(read(0, min(len(FRAMES_MAGIC), num_bytes))) == FRAMES_MAGIC:
            return scan_frames(read, num_bytes, shard=shard, num_leaves=len(self.leaves))
        least_bytes = 4 * len(self.leaves)
        try:
            starts = read_offsets(read, num_bytes, shard=shard, least_bytes=least_bytes, hint=NO_CHUNK)
        except ShardError:  # in chunks with rows the offsets are not borders of items
            rows = _scan_rows(read, num_bytes, shard=shard)
            if rows is None:
                raise
            return rows
        if starts[0] != table_bytes(len(starts) - 1):
            msg = f"the offsets put the first item at byte {starts[0]}, but the table of offsets does not end there"
            raise ShardError(msg, shard=shard, byte=4, hint=NO_CHUNK)
        return ShardScan(starts, offset_crcs(starts))

    def field_names(self, head: Mapping[str, Any]) -> Sequence[str] | None:
        """Return the keys of the items; None for chunks of rows, which have a schema of their own."""
        if _ROWS in head:
            return None
        return json.loads(self.tree["context"]) if self.tree["type"] == "builtins.dict" else ["item"]

    def parse(self, buffer: Buffer, span: Span) -> Records:
        """Open the bytes of consecutive items; each is decoded on request.

        Raises `ShardError` if the bytes do not hold that many items.
        """
        if _ROWS in span.head:
            return _parse_rows(buffer, span)
        decoders = [leaf_decoder(leaf, allow_pickle=self.allow_pickle) for leaf in self.leaves]
        decode = partial(_decode, self.leaves, decoders, _builder(self.tree))
        if span.head:
            return parse_frames(buffer, span, num_leaves=len(self.leaves), decode=decode)
        walk = partial(walk_sizes, buffer, span.num_samples, num_sizes=len(self.leaves))
        if self._is_packed:
            walk, decode = partial(frame_ends, buffer, span.num_samples), partial(_inflated, decode)
        starts = borders_in(buffer, span, walk, what="items")
        crcs = partial(offset_crcs, starts, span.first_byte)
        return CutRecords(buffer, starts, span, decode=decode, crcs=crcs)


def config_of(index: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of all chunks in an ``index.json``, with the name of their loader.

    Raises `UsageError` if the file is invalid, or the chunks are encrypted.
    """
    try:
        config = {"item_loader": ITEMS_LOADER, **index["config"]}
        [str(leaf) for leaf in config["data_format"]]
    except (LookupError, TypeError, AttributeError) as error:
        raise _no_index(error) from None
    if config.get("encryption"):
        msg = f"these chunks have encryption {config['encryption']!r}, which shoal does not read"
        raise UsageError(msg, hint="write them again with litdata.optimize(...) without encryption=")
    return config


def whole_codec(config: Mapping[str, Any]) -> str:
    """Return the codec that compresses whole chunks; "" if there is none, or it compresses items.

    Raises `UsageError` if it is not known.
    """
    kind, level = config.get("compression"), config.get("compression_level")
    if not kind:
        return ""
    if str(kind).partition(":")[0] != "zstd" or level not in (None, "chunk", *_LEVELS_INSIDE):
        msg = f"these chunks have compression {kind!r}, compression_level {level!r}, which shoal does not read"
        raise UsageError(msg, hint=f"shoal reads zstd with compression_level chunk, {' and '.join(_LEVELS_INSIDE)}")
    return "" if level in _LEVELS_INSIDE else "zst"


def _no_index(error: Exception) -> UsageError:
    msg = f"this is not an index of LitData chunks: {type(error).__name__}: {error}"
    return UsageError(msg, hint=_INDEX_HINT)


def _inflated(decode: Callable[[bytes], Sample], data: bytes) -> Sample:
    """Decode an item that is compressed alone; errors name its first byte."""
    inside = bytes(inflated(data))
    try:
        return decode(inside)
    except BadRecordError as error:
        raise BadRecordError(f"{error.what} (byte {error.byte} of the decompressed item)") from None


def _decode(leaves: Sequence[str], decoders: Sequence[Callable[[bytes], Any]], build: Build, data: bytes) -> Sample:
    """Build the item of these leaves."""
    at = 4 * len(leaves)
    sizes = np.frombuffer(data, "<u4", count=len(leaves)).tolist() if at <= len(data) else [len(data)]
    if at + sum(sizes) != len(data):
        msg = f"the leaves of this item have {at + sum(sizes)} bytes with their sizes, but the item has {len(data)}"
        raise BadRecordError(msg)
    values: list[Any] = []
    for leaf, decode, size in zip(leaves, decoders, sizes, strict=True):
        try:
            values.append(decode(data[at : at + size]))
        except UsageError:
            raise
        except (ValueError, OverflowError, RecursionError) as error:
            raise BadRecordError(f"leaf {len(values)} is not a valid {leaf}: {error}", byte=at) from None
        at += size
    item = build(iter(values))
    return item if isinstance(item, dict) else {"item": item}


def _leaves_of(tree: Mapping[str, Any], depth: int) -> Iterator[None]:
    """Check a tree, and yield None for each leaf."""
    kind, children = tree["type"], tree["children_spec"]
    if depth > _MOST_DEPTH or kind not in (None, "builtins.dict", "builtins.list", "builtins.tuple"):
        raise ValueError(f"items hold a {kind!r}, {depth} deep; dicts, lists and tuples are read")
    if kind is None:
        yield None
    if kind == "builtins.dict" and len(json.loads(tree["context"])) != len(children):
        raise ValueError(f"a dict of {len(children)} values has the keys {tree['context']}")
    for child in children:
        yield from _leaves_of(child, depth + 1)


def _builder(tree: Mapping[str, Any]) -> Build:
    """Return a function that builds an item from its leaves, taken in turn."""
    children = [_builder(child) for child in tree["children_spec"]]
    if tree["type"] is None:
        return next
    if tree["type"] == "builtins.dict":
        keys = json.loads(tree["context"])
        return lambda values: {key: build(values) for key, build in zip(keys, children, strict=True)}
    if tree["type"] == "builtins.tuple":
        return lambda values: tuple(build(values) for build in children)
    return lambda values: [build(values) for build in children]


_ROWS_MAGIC = b"LDARW01\0"
_ROWS_TAIL_BYTES = 4 + len(_ROWS_MAGIC)
_ROWS = "rows"
"""The key in the head of a chunk of rows."""


def _scan_rows(read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan | None:
    """Find the record batches of a chunk, one piece each; None if it does not end with the magic number.

    Raises `ShardError` if the Arrow file is invalid, exceeds the chunk, or does not have the number of rows in the head
    of the chunk.
    """
    tail = bytes(read(max(0, num_bytes - _ROWS_TAIL_BYTES), num_bytes))
    if not tail.endswith(_ROWS_MAGIC):
        return None
    end = num_bytes - _ROWS_TAIL_BYTES
    begin = end - int.from_bytes(tail[:4], "little")
    if begin < 4 or len(tail) < _ROWS_TAIL_BYTES:
        msg = f"an Arrow file of {end - begin} bytes ends at byte {end}"
        raise ShardError(msg, shard=shard, byte=max(0, end), hint=OTHER_FILE)
    rows = scan_messages(read, begin, end, shard=shard)
    num_items = int.from_bytes(bytes(read(0, 4)), "little")
    if rows.num_samples != num_items:
        msg = f"the chunk says {num_items} items, but its Arrow file has {rows.num_samples} rows"
        raise ShardError(msg, shard=shard, byte=0, hint=OTHER_FILE)
    return replace(rows, head={_ROWS: dict(rows.head)})


def _parse_rows(buffer: Buffer, span: Span) -> TableRecords:
    """Open some record batches.

    Raises `ShardError` if they are invalid, or have another number of rows.
    """
    rows = span.head.get(_ROWS)
    if not isinstance(rows, Mapping):
        raise unusable(_ROWS, f"{rows!r:.40} says nothing of rows", shard=span.shard)
    table, crcs = Arrow().opened(buffer, span._replace(head=rows))
    return TableRecords(table, crcs, shard=span.shard, byte=span.first_byte, getter_of=_getter_of)


def _getter_of(array: Any) -> Callable[[int], Any]:
    """Return a function that gives a value of a column as LitData does: lists of numbers are lists."""
    return lambda row: python_value(array[row])
