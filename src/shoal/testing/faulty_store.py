"""A store that fails like remote stores, without a network."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from shoal.errors import StorageError
from shoal.storage.store_protocol import ObjectInfo, Reader, Store, StoreWrapper
from shoal.testing.faults import Fault, FaultKind, FaultPlan, Mishap

_MAY_SUCCEED_LATER = {429, 500, 502, 503, 504}


class FaultyStore(StoreWrapper):
    """A wrapper of a store with faults in its reads, `stat`, `find` and `list`, with the errors of shoal's own stores.

    Faults that a transport notices (a broken connection, a short or a wrong response, 429 and 5xx) raise a transient
    `StorageError`. ``changed`` raises an error that is not transient, and gives another version in `stat`, `find` and
    `list`. ``corrupt`` returns wrong bytes, which only a checksum notices. ``slow`` and ``stall`` take their
    ``seconds`` and then succeed. Writing, mapping and advice have no faults.

    Attributes
    ----------
    reads : list of (path, first byte, end byte)
        Every requested range, in order.

    Examples
    --------
    >>> from shoal.storage.files.local_store import LocalStore
    >>> store = shoal.testing.FaultyStore(LocalStore(), [shoal.testing.Fault("status", requests=[0])])
    >>> store.read_range("pets.csv", 0, 4)
    Traceback (most recent call last):
    ...
    shoal.errors.StorageError: pets.csv: the answer was 503 (a fault of the test)
    >>> store.read_range("pets.csv", 0, 4)
    b'name'
    """

    def __init__(
        self,
        store: Store,
        faults: Sequence[Fault] = (),
        *,
        seed: int = 0,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(store)
        self.reads: list[tuple[str, int, int]] = []
        self._faults = tuple(faults)
        self._seed = seed
        self._sleep = sleep
        self._plan = FaultPlan(faults, seed=seed)
        self._happened: list[FaultKind] = []
        self._num_right: Counter[str] = Counter()

    def __reduce__(self) -> tuple[object, ...]:
        # A worker's copy has its own counts, from zero.
        return partial(FaultyStore, seed=self._seed), (self.store, self._faults)

    def advise(self, path: str, first_byte: int, end_byte: int) -> None:
        """Forward to the wrapped store."""
        self.store.advise(path, first_byte, end_byte)

    def num_faults(self) -> dict[FaultKind, int]:
        """Count the faults of each kind that happened."""
        return dict(Counter(self._happened))

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        """Read the bytes ``[first_byte, end_byte)``, with the faults."""
        self.reads.append((path, first_byte, end_byte))
        mishap = self._fault(path, first_byte, end_byte)
        if mishap and mishap.fault.kind == "changed":
            msg = f"{path}: this shard changed while it was being read (a fault of the test)"
            # As in shoal's stores: only several such errors in a row, without a right response in between, count.
            raise StorageError(msg, worth_attempts=4, evidence=self._num_right[path])
        data = self.store.read_range(path, first_byte, end_byte)
        self._num_right[path] += 1
        if not mishap or mishap.fault.kind != "corrupt" or not data:
            return data
        wrong = bytearray(data)
        wrong[mishap.bits % len(wrong)] ^= 1
        return bytes(wrong)

    def fill(self, path: str, first_byte: int, buffer: memoryview) -> None:
        """Fill a buffer with the bytes from ``first_byte`` on, with the faults."""
        data = self.read_range(path, first_byte, first_byte + len(buffer))
        buffer[: len(data)] = data

    def reader(self, path: str) -> Reader:
        """Return a reader of parts of one object, with the faults."""
        return _FaultyReader(self, path, self.store.reader(path))

    def stat(self, path: str) -> ObjectInfo:
        """Return size and version."""
        return _with_fault(self.store.stat(path), self._fault(path))

    def stat_again(self, path: str) -> ObjectInfo:
        """`stat` with a new request."""
        return _with_fault(self.store.stat_again(path), self._fault(path))

    def find(self, path: str) -> ObjectInfo | None:
        """`stat`, but None if the object does not exist."""
        mishap = self._fault(path)
        info = self.store.find(path)
        return info and _with_fault(info, mishap)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List every object below the directory ``prefix``, sorted by path."""
        mishap = self._fault(prefix)
        return (_with_fault(info, mishap) for info in self.store.list(prefix))

    def map(self, path: str) -> memoryview:
        """Forward to the wrapped store."""
        return self.store.map(path)

    def _fault(self, path: str, first_byte: int = 0, end_byte: int = 0) -> Mishap | None:
        """Return the fault of this request, or None; raise a fault that a transport notices."""
        mishap = self._plan.draw(path, first_byte, end_byte)
        if mishap is None:
            return None
        fault = mishap.fault
        self._happened.append(fault.kind)
        if fault.kind in {"slow", "stall"}:
            self._sleep(fault.seconds)
        elif fault.kind == "status":
            msg = f"{path}: the answer was {fault.status} (a fault of the test)"
            transient = fault.status in _MAY_SUCCEED_LATER
            raise StorageError(msg, transient=transient, retry_after_seconds=fault.retry_after_seconds)
        elif fault.kind not in {"corrupt", "changed"}:
            msg = f"{path}: asked for bytes [{first_byte}, {end_byte}); got {fault.kind} (a fault of the test)"
            raise StorageError(msg, transient=True)
        return mishap


@dataclass(frozen=True, slots=True)
class _FaultyReader:
    """A reader of parts of one object, with the faults of a store."""

    store: FaultyStore
    path: str
    reader: Reader

    def __call__(self, first_byte: int, end_byte: int, /) -> bytes:
        return self.store.read_range(self.path, first_byte, end_byte)

    def confirm(self) -> None:
        self.reader.confirm()


def _with_fault(info: ObjectInfo, mishap: Mishap | None) -> ObjectInfo:
    if mishap is None or mishap.fault.kind != "changed":
        return info
    return ObjectInfo(info.path, info.num_bytes, f"{info.version}-{mishap.bits:x}")
