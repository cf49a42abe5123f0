"""LitData chunks: a table of offsets and items; what the items hold is in the ``index.json`` beside the chunks.

``u32 n``, ``u32 offsets[n + 1]`` counted from the start of the file, and the items, each of which is a ``u32`` size for
every leaf and then the leaves one after the other. The index names the kind of each leaf and the tree they make.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError, UsageError
from shoal.shards.litdata_leaves import leaf_decoder
from shoal.shards.protocol import Buffer, ReadBytes, Sample, ShardScan

__all__ = ["LitData", "LitDataRecords"]

_NO_CHUNK = "this is no LitData chunk, a compressed or a damaged one"
_OTHER_FILE = "the chunk is damaged, or not the one of this index.json: copy it again, or index it again"
_INDEX_HINT = "give what the index.json beside the chunks holds: LitData(json.loads(Path(...).read_text()))"
_MOST_DEPTH = 32

Build = Callable[[Iterator[Any]], Any]


class LitData:
    """The format of LitData's optimised datasets; ``index`` is what the ``index.json`` beside the chunks holds.

    A sample is the item, where that is a dict, else ``{"item": item}``. Tensors are numpy arrays, images are Pillow's.
    With ``allow_pickle`` leaves of pickles are read, which runs whatever code is in them.

    Raises
    ------
    UsageError
        The index is none, or that of chunks that are compressed, encrypted, or of tokens without items.
    """

    name: str = "litdata"
    suffixes: tuple[str, ...] = (".bin",)

    def __init__(self, index: Mapping[str, Any], *, allow_pickle: bool = False) -> None:
        self.allow_pickle = allow_pickle
        try:
            config = index["config"]
            for what in ("compression", "encryption", "ipc_compression"):
                if config.get(what):
                    msg = f"these chunks have {what} {config[what]!r}, which is not read"
                    raise UsageError(msg, hint="write them again without")
            if config.get("item_loader", "PyTreeLoader") != "PyTreeLoader":
                msg = f"these chunks are for the item loader {config['item_loader']!r}, and have no items"
                raise UsageError(msg, hint="chunks of LitData's default, PyTreeLoader, are read")
            self.leaves = [str(leaf) for leaf in config["data_format"]]
            self.tree = json.loads(config["data_spec"])[1]
            num_leaves = sum(1 for _ in _leaves_of(self.tree, 0))
            if num_leaves != len(self.leaves) or not self.leaves:
                msg = f"its tree has {num_leaves} leaves, and it names the kinds of {len(self.leaves)}"
                raise ValueError(msg)  # noqa: TRY301  # said in one place below
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            if isinstance(error, UsageError):
                raise
            msg = f"this is no index of LitData chunks: {type(error).__name__}: {error}"
            raise UsageError(msg, hint=_INDEX_HINT) from None

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Read the table of offsets, 4 bytes a sample; the layout CRC of a sample is that of its two offsets.

        Raises
        ------
        ShardError
            Where the table contradicts itself or the size of the chunk.
        """
        num_samples = int(np.frombuffer(read(0, 4), "<u4")[0]) if num_bytes >= 8 else -1
        table_end = 4 * (num_samples + 2)
        if num_samples < 0 or table_end > num_bytes:
            msg = f"a table of {num_samples} items does not fit into {num_bytes} bytes"
            raise ShardError(msg, shard=shard, byte=0, hint=_NO_CHUNK)
        starts = np.frombuffer(read(4, table_end), "<u4").astype(np.int64)
        wrong = np.flatnonzero(np.diff(starts) < 4 * len(self.leaves))
        if wrong.size or starts[0] != table_end or starts[-1] != num_bytes:
            place = int(wrong[0]) if wrong.size else 0
            msg = f"by the table items lie in bytes [{starts[0]}, {starts[-1]}) of {num_bytes}, item {place} too short"
            raise ShardError(msg, shard=shard, byte=4 * (1 + place), hint=_NO_CHUNK)
        return ShardScan(starts, _layout_crcs(starts))

    def read_sample(
        self, read: ReadBytes, first_byte: int, end_byte: int, *, shard: str, head: Mapping[str, Any]
    ) -> Sample:
        """One item, read whole."""
        item, borders = read(first_byte, end_byte), [0, end_byte - first_byte]
        return self.parse(item, borders, num_samples=1, shard=shard, first_byte=first_byte, head=head).sample(0)

    def parse(
        self,
        buffer: Buffer,
        sample_starts: Sequence[int] | None,
        *,
        num_samples: int,
        shard: str,
        first_byte: int,
        head: Mapping[str, Any],  # noqa: ARG002  (what matters is in the index.json)
    ) -> LitDataRecords:
        """Open the bytes of consecutive items; each is decoded when it is asked for.

        Raises
        ------
        ShardError
            Where the bytes do not hold so many items.
        """
        starts = _walk(buffer, len(self.leaves), num_samples) if sample_starts is None else sample_starts
        whole = starts[-1] == len(buffer) if sample_starts is None else starts[-1] <= len(buffer)
        if len(starts) != num_samples + 1 or not whole:
            msg = f"the index says {num_samples} items in these {len(buffer)} bytes, and they do not hold them"
            raise ShardError(msg, shard=shard, byte=first_byte, hint=_OTHER_FILE)
        return LitDataRecords(self, buffer, starts, shard, first_byte)


class LitDataRecords:
    """Some consecutive items of a chunk, handed out by number."""

    __slots__ = ("_buffer", "_build", "_decoders", "_first_byte", "_leaves", "_shard", "_starts")

    def __init__(
        self,
        format: LitData,  # noqa: A002
        buffer: Buffer,
        starts: Sequence[int],
        shard: str,
        first_byte: int,
    ) -> None:
        self._buffer, self._starts, self._shard, self._first_byte = buffer, starts, shard, first_byte
        self._leaves = format.leaves
        self._decoders = [leaf_decoder(leaf, allow_pickle=format.allow_pickle) for leaf in format.leaves]
        self._build = _builder(format.tree)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def layout_crcs(self) -> NDArray[np.uint32]:
        """The CRCs of the offsets of each item, as `LitData.scan` gives them; shape (len,)."""
        return _layout_crcs(np.asarray(self._starts, dtype=np.int64) + self._first_byte)

    def sample(self, number: int) -> Sample:
        """Item ``number``; O(its bytes).

        Raises
        ------
        ShardError
            Where its sizes contradict each other, or a leaf is none of its kind.
        """
        start, end = self._starts[number], self._starts[number + 1]
        data = bytes(memoryview(self._buffer)[start:end])
        at = 4 * len(self._leaves)
        sizes = np.frombuffer(data, "<u4", count=len(self._leaves)).tolist() if at <= len(data) else [len(data)]
        if at + sum(sizes) != len(data):
            msg = f"the leaves of this item have {at + sum(sizes)} bytes with their sizes, and it has {len(data)}"
            raise ShardError(msg, shard=self._shard, byte=self._first_byte + start, hint=_OTHER_FILE)
        values = []
        for leaf, decode, size in zip(self._leaves, self._decoders, sizes, strict=True):
            try:
                values.append(decode(data[at : at + size]))
            except (ValueError, OverflowError, RecursionError) as error:
                if isinstance(error, UsageError):
                    raise
                msg = f"leaf {len(values)} is no {leaf}: {error}"
                raise ShardError(msg, shard=self._shard, byte=self._first_byte + start + at, hint=_OTHER_FILE) from None
            at += size
        item = self._build(iter(values))
        return item if isinstance(item, dict) else {"item": item}


def _leaves_of(tree: Mapping[str, Any], depth: int) -> Iterator[None]:
    """One for each leaf of a tree, which is checked."""
    kind, children = tree["type"], tree["children_spec"]
    if depth > _MOST_DEPTH or kind not in (None, "builtins.dict", "builtins.list", "builtins.tuple"):
        msg = f"items hold a {kind!r}, {depth} deep; dicts, lists and tuples are read"
        raise ValueError(msg)
    if kind is None:
        yield None
    if kind == "builtins.dict" and len(json.loads(tree["context"])) != len(children):
        msg = f"a dict of {len(children)} values has the keys {tree['context']}"
        raise ValueError(msg)
    for child in children:
        yield from _leaves_of(child, depth + 1)


def _builder(tree: Mapping[str, Any]) -> Build:
    """What makes an item of its leaves, taken in turn."""
    children = [_builder(child) for child in tree["children_spec"]]
    if tree["type"] is None:
        return next
    if tree["type"] == "builtins.dict":
        keys = json.loads(tree["context"])
        return lambda values: {key: build(values) for key, build in zip(keys, children, strict=True)}
    if tree["type"] == "builtins.tuple":
        return lambda values: tuple(build(values) for build in children)
    return lambda values: [build(values) for build in children]


def _layout_crcs(starts: NDArray[np.int64]) -> NDArray[np.uint32]:
    words = starts.astype("<u4")
    pairs = np.stack([words[:-1], words[1:]], axis=1).tobytes() if len(words) > 1 else b""
    return np.array([crc32(pairs[at : at + 8]) for at in range(0, len(pairs), 8)], dtype=np.uint32)


def _walk(buffer: Buffer, num_leaves: int, num_samples: int) -> list[int]:
    """Where items begin, from the sizes that each has at its start; fewer where they lead out of the buffer."""
    starts = [0]
    while len(starts) <= num_samples and starts[-1] + 4 * num_leaves <= len(buffer):
        sizes = np.frombuffer(buffer, "<u4", count=num_leaves, offset=starts[-1])
        starts.append(starts[-1] + 4 * num_leaves + int(sizes.sum(dtype=np.int64)))
    return starts
