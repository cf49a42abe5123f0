"""Parts of columns on disk, kept shard by shard during a scan of all samples, so that a killed scan can continue."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.formats.column_paths import Column
from shoal.formats.folder.reader import Folder
from shoal.formats.format_registry import options_of
from shoal.index.shard_scan import Buffer
from shoal.indexing.build import SMALL_BYTES, SMALL_REMOTE_BYTES
from shoal.indexing.opened_dataset import Opened
from shoal.pipeline.sample_columns.column_parts import RULE, Part, SpanValues
from shoal.storage.cache_directory import Scratch, cache_directory
from shoal.storage.stat_many import stat_all

_SUFFIX = ".columns"
_LENGTH_BYTES = 8


class KeptParts:
    """The finished shards of a scan: values of their spans, each with the id of its first sample.

    Only values of large datasets are kept, below the cache directory of this machine, until `clear`. Their names
    contain the state of the shard, so that a changed shard is read again.
    """

    def __init__(self, opened: Opened, columns: Sequence[Column]) -> None:
        self._scratch: Scratch | None = None
        self._names: list[str] = []
        small_bytes = SMALL_BYTES if opened.store.reads_ahead else SMALL_REMOTE_BYTES
        if opened.index.num_bytes < small_bytes or opened.index.format == Folder.name:
            return
        words = [RULE, opened.index.fingerprint, opened.format.name, options_of(opened.format)]
        key = _digest([*words, [[column.name, column.path] for column in columns], opened.paths])
        self._scratch = Scratch(str(Path(cache_directory(), "scans", key)), suffix=_SUFFIX)
        infos = stat_all(opened.paths, opened.store)
        self._names = [_digest([info.path, info.num_bytes, info.version]) + _SUFFIX for info in infos]

    @property
    def keeps(self) -> bool:
        """True if the dataset is large enough to keep its parts."""
        return self._scratch is not None

    def get(self, shard: int) -> list[tuple[int, SpanValues]] | None:
        """Return the spans of a shard; None if they are not kept."""
        data = None if self._scratch is None else self._scratch.get(self._names[shard])
        return None if data is None else _decoded(data)

    def put(self, shard: int, spans: Sequence[tuple[int, SpanValues]]) -> None:
        """Keep the spans of a shard."""
        if self._scratch is not None:
            self._scratch.put(self._names[shard], _encoded(spans))

    def clear(self) -> None:
        """Remove all kept parts."""
        if self._scratch is not None:
            self._scratch.clear()


def _digest(words: list[Any]) -> str:
    return hashlib.blake2b(json.dumps(words).encode(), digest_size=16).hexdigest()


def _encoded(spans: Sequence[tuple[int, SpanValues]]) -> list[Buffer]:
    about: list[Any] = []
    arrays = []
    for first_sample, span in spans:
        parts = [
            [part.kind, list(part.words), part.first, str(part.values.dtype), len(part.values), len(part.missing)]
            for part in span.parts
        ]
        about.append([first_sample, list(span.sources), parts])
        arrays += [array for part in span.parts for array in (part.values, part.missing)]
    text = json.dumps(about).encode()
    return [len(text).to_bytes(_LENGTH_BYTES, "little"), text, *(array.tobytes() for array in arrays)]


def _decoded(data: memoryview) -> list[tuple[int, SpanValues]]:
    at = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    spans = []
    for first_sample, sources, parts in json.loads(bytes(data[_LENGTH_BYTES:at])):
        span_parts = []
        for kind, words, first, dtype, num_values, num_missing in parts:
            values = np.frombuffer(bytes(data[at : at + num_values * np.dtype(dtype).itemsize]), dtype)
            at += values.nbytes
            missing = np.frombuffer(bytes(data[at : at + 8 * num_missing]), np.int64)
            at += missing.nbytes
            span_parts.append(Part(kind, values, words, missing, first))
        spans.append((first_sample, SpanValues(span_parts, sources)))
    return spans
