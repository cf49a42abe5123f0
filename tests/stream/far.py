"""A remote store, in memory: it counts what is asked of it, and costs what it is told to cost."""

from __future__ import annotations

import tarfile
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from shoal.errors import StorageError
from shoal.indexing.scan.costs import ReadCosts
from shoal.storage.store_protocol import ObjectInfo, Store


class Contents(Protocol):
    """The bytes of an object."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes: ...


@lru_cache(maxsize=100_000)
def _header(number: int, size: int) -> bytes:
    info = tarfile.TarInfo(f"{number:06d}.bin")
    info.size = size
    return info.tobuf(tarfile.USTAR_FORMAT)


_ZEROS = memoryview(bytes(1 << 20))


def _zeros(num_bytes: int) -> memoryview:
    return _ZEROS[:num_bytes] if num_bytes <= len(_ZEROS) else memoryview(bytes(num_bytes))


class LargeTar:
    """A tar of members of the sizes given, whose payloads are zeros and take no memory: ``NNNNNN.bin``."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._starts: list[int] = []
        self._headers: list[bytes] = []
        position = 0
        for number, size in enumerate(sizes):
            self._starts.append(position)
            self._headers.append(_header(number, size))
            position += 512 + (size + 511) // 512 * 512
        self._num_bytes = position + 1024

    def __len__(self) -> int:
        return self._num_bytes

    def __getitem__(self, part: slice, /) -> bytes:
        first, end, _ = part.indices(self._num_bytes)
        pieces, position = [], first
        for number in range(bisect_right(self._starts, first - 512), bisect_left(self._starts, end)):
            start = self._starts[number]
            if start > position:
                pieces.append(_zeros(start - position))
            pieces.append(memoryview(self._headers[number])[max(0, first - start) : end - start])
            position = min(end, start + 512)
        pieces.append(_zeros(max(0, end - position)))
        return b"".join(pieces)


@dataclass
class FarStore(Store):
    """Objects by path. `before` runs inside each request, and may wait or raise."""

    objects: Mapping[str, Contents]
    reads_ahead: bool = False
    requests: list[tuple[str, int, int]] = field(default_factory=list)
    stats: list[str] = field(default_factory=list)
    most_at_once: int = 0
    _now: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def before(self, path: str, first_byte: int, end_byte: int) -> None:
        """Runs inside each request; tests replace it."""

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        with self._lock:
            self.requests.append((path, first_byte, end_byte))
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            self.before(path, first_byte, end_byte)
        finally:
            with self._lock:
                self._now -= 1
        data = self.objects[path][first_byte:end_byte]
        if len(data) < end_byte - first_byte:
            msg = f"{path}: asked for bytes [{first_byte}, {end_byte}), but the object ends before"
            raise StorageError(msg)
        return data

    def stat(self, path: str) -> ObjectInfo:
        self.stats.append(path)
        return ObjectInfo(path, len(self.objects[path]), f'"{len(self.objects[path])}"')

    def find(self, path: str) -> ObjectInfo | None:
        return self.stat(path) if path in self.objects else None

    @property
    def read_bytes(self) -> int:
        return sum(end - first for _, first, end in self.requests)


class KnownCosts(ReadCosts):
    """Costs that stay what they are, so that requests and bytes can be foretold."""

    __slots__ = ()

    def measured(self, num_bytes: int, seconds: float) -> None:
        pass


def known_costs(*, request_bytes: int = 1 << 20) -> KnownCosts:
    """Costs by which a request takes as long as so many bytes."""
    return KnownCosts(request_seconds=request_bytes * 1e-8, byte_seconds=1e-8)
