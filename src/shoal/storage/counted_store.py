"""A store whose reads are counted as requests: for what is read beside the samples, as by scans of changed shards."""

from __future__ import annotations

from typing import Protocol, cast

from shoal.storage.retry import RetryingStore
from shoal.storage.store import Advise, ReadRange, Store

__all__ = ["Counting", "counted"]


class Counting(Protocol):
    """Who is told of requests."""

    def began(self, num_bytes: int) -> None:
        """One try of a request is under way."""
        ...

    def ended(self, num_bytes: int) -> None:
        """It was answered, or failed."""
        ...


class _Reads(ReadRange, Advise, Protocol):
    """What is counted of a store, and what says whether it is remote."""


def counted(store: _Reads, counting: Counting) -> _Reads:
    """The store, with each try of a read told to ``counting``."""
    if isinstance(store, RetryingStore):
        return RetryingStore(cast("Store", _CountedStore(store.store, counting)), store.rule)
    return _CountedStore(store, counting)


class _CountedStore:
    """Reads as ``store`` does."""

    def __init__(self, store: _Reads, counting: Counting) -> None:
        self._store, self._counting = store, counting

    @property
    def reads_ahead(self) -> bool:
        """As the store."""
        return self._store.reads_ahead

    def advise(self, path: str, first_byte: int, end_byte: int) -> None:
        """As the store."""
        self._store.advise(path, first_byte, end_byte)

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        """As the store, counted."""
        self._counting.began(end_byte - first_byte)
        try:
            return self._store.read_range(path, first_byte, end_byte)
        finally:
            self._counting.ended(end_byte - first_byte)
