"""A store that counts its reads as requests, for reads apart from the samples, such as scans of changed shards."""

from __future__ import annotations

from typing import Protocol, cast

from shoal.storage.retry import RetryingStore
from shoal.storage.store import Advise, ReadRange, Store


class Counting(Protocol):
    """Receiver of the start and the end of each request."""

    def began(self, num_bytes: int) -> None:
        """Count one attempt of a request as started."""
        ...

    def ended(self, num_bytes: int) -> None:
        """Count it as ended, answered or failed."""
        ...


class _Reads(ReadRange, Advise, Protocol):
    """The verbs that are counted, and `reads_ahead`, which says whether the store is remote."""


def counted(store: _Reads, counting: Counting) -> _Reads:
    """Return the store with each attempt of a read reported to ``counting``."""
    if isinstance(store, RetryingStore):
        return RetryingStore(cast("Store", _CountedStore(store.store, counting)), store.rule)
    return _CountedStore(store, counting)


class _CountedStore:
    """A store whose reads are those of ``store``, counted."""

    def __init__(self, store: _Reads, counting: Counting) -> None:
        self._store, self._counting = store, counting

    @property
    def reads_ahead(self) -> bool:
        """`reads_ahead` of the wrapped store."""
        return self._store.reads_ahead

    def advise(self, path: str, first_byte: int, end_byte: int) -> None:
        """Pass the advice on to the wrapped store."""
        self._store.advise(path, first_byte, end_byte)

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        """Read from the wrapped store, and count the request."""
        self._counting.began(end_byte - first_byte)
        try:
            return self._store.read_range(path, first_byte, end_byte)
        finally:
            self._counting.ended(end_byte - first_byte)
