"""A dataset of this machine as if it were remote: slow, unreliable, and looked at request by request."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.stream.made import described

from shoal.errors import StorageError
from shoal.indexing.changed_shards import ShardCheck
from shoal.reading.reading_options import ReadingOptions
from shoal.storage.files.local_store import LocalStore
from shoal.storage.retry import RetryingStore, RetryRule
from shoal.storage.store_protocol import Reader, Store, StoreWrapper
from shoal.stream.dataset import Dataset
from shoal.testing import Fault, FaultyStore

SOON = RetryRule(first_pause_seconds=0.001, most_pause_seconds=0.02, deadline_seconds=60.0)


def far_away(ds: Dataset, store: Store | None = None, *, rule: RetryRule = SOON, **options: Any) -> Dataset:
    """The dataset, read from ``store`` (else from its files, without the system reading ahead), with retries."""
    inner = local_store() if store is None else store
    opened = ds.stream.opened
    tried = RetryingStore(inner, rule)
    check = ShardCheck(opened.index, opened.paths, store=tried, format=opened.format)
    reading = ReadingOptions(**{"deadline_seconds": rule.deadline_seconds, **options})
    return described(ds, source=replace(opened, store=tried, check=check), reading=reading)


def local_store() -> LocalStore:
    """Files that nobody reads ahead."""
    store = LocalStore()
    store.reads_ahead = False
    return store


def faulty(*faults: Fault, seed: int = 1) -> FaultyStore:
    """The same with faults."""
    return FaultyStore(local_store(), faults, seed=seed)


@dataclass
class Distant(StoreWrapper):
    """Files behind some latency; counts what is under way, and fails where it is told to."""

    latencies: Sequence[float] = (0.0,)
    requests: list[tuple[str, int, int]] = field(default_factory=list)
    now_bytes: int = 0
    peak_bytes: int = 0
    now: int = 0
    peak: int = 0
    reads_ahead: bool = False

    def __post_init__(self) -> None:
        self.store, self._lock, self._dice = LocalStore(), threading.Lock(), random.Random(3)

    def reader(self, path: str) -> Reader:
        return self.store.reader(path)

    def map(self, path: str) -> memoryview:
        return self.store.map(path)

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        with self._lock:
            self.requests.append((path, first_byte, end_byte))
            self.now_bytes += end_byte - first_byte
            self.now += 1
            self.peak_bytes, self.peak = max(self.peak_bytes, self.now_bytes), max(self.peak, self.now)
            latency = self._dice.choice(self.latencies)
        try:
            time.sleep(latency)
            return self.store.read_range(path, first_byte, end_byte)
        finally:
            with self._lock:
                self.now_bytes -= end_byte - first_byte
                self.now -= 1


@dataclass
class Dead(Distant):
    """Never answers, as quickly as it can; or until ``lives_at``."""

    lives_at: float = float("inf")

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        if time.monotonic() < self.lives_at and end_byte:
            msg = f"could not read {path}: connection refused"
            raise StorageError(msg, transient=True)
        return super().read_range(path, first_byte, end_byte)
