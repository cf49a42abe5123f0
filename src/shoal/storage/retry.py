"""Retries of transient failures, with growing, random pauses, until a deadline.

Each pause is drawn at random from zero to a bound that doubles ("full jitter"): clients that failed together must not
come back together. With `retry_control`, the owner of a thread sets how pauses end, so that closing a stream does not
wait for a server that is down, and where retries are counted. Retries that take more than a few seconds are logged.

References
----------
M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from shoal.errors import StorageError
from shoal.storage.files.local_store import LocalStore
from shoal.storage.store_of_url import DEADLINE, deadline_of
from shoal.storage.store_protocol import Buffer, ObjectInfo, Store, StoreWrapper, as_one_buffer
from shoal.storage.urls import without_secrets

_log = logging.getLogger("shoal")

_LOG_AFTER_SECONDS = 5.0
_LOG_EVERY_SECONDS = 30.0
_logged_seconds = -math.inf

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class RetryRule:
    """Limits of retrying: pauses of up to ``first_pause_seconds``, doubling to ``most_pause_seconds``.

    While the store answers other requests, pauses grow to ``lively_pause_seconds`` only: it is not down, and longer
    pauses would relieve no server. Retries end ``deadline_seconds`` after the first attempt. If the server has never
    answered (`StorageError.unmet`), they end after ``contact_seconds``: a wrong port or name is more likely than a
    server that is about to start. A Retry-After (`StorageError.retry_after_seconds`) lengthens a pause.
    """

    first_pause_seconds: float = 0.1
    most_pause_seconds: float = 10.0
    lively_pause_seconds: float = 1.0
    deadline_seconds: float = 120.0
    contact_seconds: float = 10.0

    def pause_seconds(self, attempt: int, server_seconds: float | None, *, is_lively: bool = False) -> float:
        """Return the pause after failed attempt number ``attempt``, counted from 1."""
        most_seconds = min(self.most_pause_seconds, self.lively_pause_seconds if is_lively else math.inf)
        bound = min(most_seconds, self.first_pause_seconds * 2.0 ** min(attempt - 1, 60))
        # Processes must not draw the same number at the same moment; no streamed data depends on it.
        return (server_seconds or 0.0) + int.from_bytes(os.urandom(8), "little") / 2**64 * bound


@dataclass(frozen=True, slots=True)
class RetryControl:
    """Retry behaviour of the requests of one thread.

    ``pause`` waits for some seconds and returns True if the thread must stop; ``retried`` is called with each failure
    before another attempt. ``deadline_seconds`` replaces the deadline of the rule. ``is_lively`` returns True if the
    store answers other requests meanwhile. ``served`` is called with the number of bytes that a read took from files of
    this machine instead of the store.
    """

    pause: Callable[[float], bool]
    retried: Callable[[StorageError], None]
    deadline_seconds: float | None = None
    is_lively: Callable[[], bool] = bool
    served: Callable[[int], object] = int


class StoppedError(StorageError):
    """A request that ended early because its result is no longer needed."""


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


class _ThreadState(threading.local):
    control = RetryControl(_sleep, lambda _: None)


_thread_state = _ThreadState()


@contextmanager
def retry_control(control: RetryControl) -> Iterator[None]:
    """Set the `RetryControl` of this thread's requests while the context lasts."""
    before, _thread_state.control = _thread_state.control, control
    try:
        yield
    finally:
        _thread_state.control = before


def current_retry_control() -> RetryControl:
    """Return the `RetryControl` of this thread, for other threads that make requests on its behalf."""
    return _thread_state.control


def retried(
    call: Callable[[], _Result], rule: RetryRule, *, what: str | Callable[[], str], began_seconds: float | None = None
) -> _Result:
    """Return the result of ``call``, retried while its errors are transient and the deadline has not passed.

    The text ``what``, or its result if it is a function, ends the sentence "could not ...", without secrets. The
    deadline counts from ``began_seconds`` (`time.monotonic`), if given, and else from now.

    A final `StorageError` is raised once it has occurred ``worth_attempts`` times with the same evidence, usually at
    once. After the deadline, a final error with the number of attempts is raised, chained to the last error.
    """
    control = _thread_state.control
    deadline_seconds = rule.deadline_seconds if control.deadline_seconds is None else control.deadline_seconds
    began = time.monotonic() if began_seconds is None else began_seconds
    num_final: dict[Hashable, int] = {}
    for attempt in itertools.count(1):
        try:
            return call()
        except StorageError as error:
            if not error.transient:
                # If one server among many lags, the evidence varies, or good answers come in between.
                num_final[error.evidence] = num_final.get(error.evidence, 0) + 1
                if num_final[error.evidence] >= error.worth_attempts:
                    raise
            passed_seconds, action = time.monotonic() - began, what if isinstance(what, str) else what()
            pause_seconds = rule.pause_seconds(attempt, error.retry_after_seconds, is_lively=control.is_lively())
            if error.unmet:
                deadline_seconds = min(deadline_seconds, rule.contact_seconds)
            if passed_seconds + pause_seconds > deadline_seconds:
                raise _given_up(error, action, attempt, passed_seconds, deadline_seconds) from error
            control.retried(error)
            if passed_seconds + pause_seconds >= _LOG_AFTER_SECONDS:
                _log_retry(error, action, attempt, passed_seconds, deadline_seconds)
            if control.pause(pause_seconds):
                raise StoppedError(f"could not {action}: the stream was closed during a retry") from error
    raise AssertionError  # pragma: no cover - the loop has no end


def _log_retry(last: StorageError, what: str, attempt: int, passed_seconds: float, deadline_seconds: float) -> None:
    """Log retries that take long; at most every 30 s, however many requests fail."""
    global _logged_seconds  # noqa: PLW0603  # there is one process
    now = time.monotonic()
    if now - _logged_seconds >= _LOG_EVERY_SECONDS:
        _logged_seconds = now
        text = "could not %s so far (attempt %d, after %.1f s), retrying until %g s are over; the last answer: %s"
        _log.warning(text, what, attempt, passed_seconds, deadline_seconds, last.message)


def _given_up(
    last: StorageError, what: str, num_attempts: int, passed_seconds: float, deadline_seconds: float
) -> StorageError:
    tries = "1 attempt" if num_attempts == 1 else f"{num_attempts} attempts"
    msg = (
        f"could not {what}: {tries} in {passed_seconds:.1f} s, and the deadline is {deadline_seconds:g} s; "
        f"the last answer: {last.message}"
    )
    hint = last.hint or "if the server is only slow to come back, raise the deadline"
    if last.unmet:
        msg += "; no answer has come from this server as yet"
        hint += f" (to wait longer for a server that is about to start: {DEADLINE} in storage_options)"
    if (server_seconds := last.retry_after_seconds) is not None:
        msg += f" (the server asked to wait {server_seconds:g} s)"
        if server_seconds > deadline_seconds:
            hint += f"; a stream with reading(deadline={2 * math.ceil(server_seconds)}) waits that long"
    return StorageError(msg, hint=hint)


class RetryingStore(StoreWrapper):
    """A store that retries transient failures of ``store``; final errors pass. Pickles with the wrapped store."""

    def __init__(self, store: Store, rule: RetryRule | None = None) -> None:
        super().__init__(store)
        self.rule = RetryRule() if rule is None else rule

    def __reduce__(self) -> tuple[object, ...]:
        return RetryingStore, (self.store, self.rule)

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        """Return exactly the bytes ``[first_byte, end_byte)`` of ``path``."""
        what = describe_read(path, first_byte, end_byte)
        return retried(lambda: self.store.read_range(path, first_byte, end_byte), self.rule, what=what)

    def fill(self, path: str, first_byte: int, buffer: memoryview) -> None:
        """Fill a buffer with the bytes of ``path`` from ``first_byte`` on."""
        what = describe_read(path, first_byte, first_byte + len(buffer))
        retried(lambda: self.store.fill(path, first_byte, buffer), self.rule, what=what)

    def stat(self, path: str) -> ObjectInfo:
        """Return size and version of ``path``, as the store gives them."""
        return retried(lambda: self.store.stat(path), self.rule, what=f"look at {without_secrets(path)}")

    def stat_again(self, path: str) -> ObjectInfo:
        """`stat` with a new request."""
        return retried(lambda: self.store.stat_again(path), self.rule, what=f"look at {without_secrets(path)}")

    def find(self, path: str) -> ObjectInfo | None:
        """`stat`, or None if the object does not exist."""
        return retried(lambda: self.store.find(path), self.rule, what=f"look for {without_secrets(path)}")

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Return every object below the directory ``prefix``, sorted by path."""
        # Retried as a whole: a listing resumed after a failure could skip or repeat objects.
        return iter(retried(lambda: [*self.store.list(prefix)], self.rule, what=f"list {without_secrets(prefix)}"))

    def put(self, path: str, data: Buffer | Sequence[Buffer]) -> None:
        """Write the whole object; a write is idempotent."""
        retried(lambda: self.store.put(path, data), self.rule, what=f"write {without_secrets(path)}")

    def put_if(self, path: str, data: Buffer | Sequence[Buffer], *, replaces: ObjectInfo | None) -> bool:
        """Write the whole object if the stored object is ``replaces``; return True if written.

        If the response to the first attempt was lost, a later attempt may find the object already written, and compares
        the bytes.
        """
        num_tries = 0

        def holds_data() -> bool:
            """Return True if these bytes are the whole object; read it only if its size is right."""
            whole, info = as_one_buffer(data), self.store.find(path)
            return info is not None and info.num_bytes == len(whole) and self.store.map(path) == whole

        def once() -> bool:
            nonlocal num_tries
            num_tries += 1
            return self.store.put_if(path, data, replaces=replaces) or (num_tries > 1 and holds_data())

        return retried(once, self.rule, what=f"write {without_secrets(path)}")

    def delete(self, path: str) -> None:
        """Remove the object; a removal is idempotent."""
        retried(lambda: self.store.delete(path), self.rule, what=f"remove {without_secrets(path)}")


class Counting(Protocol):
    """Receiver of the start and the end of each request."""

    def began(self, num_bytes: int) -> None:
        """Count one attempt of a request as started."""

    def ended(self, num_bytes: int) -> None:
        """Count one attempt of a request as ended, with or without success."""


class CountedReads(StoreWrapper):
    """A store that reports each attempt of a read to ``counting``; for scans and checks, not for samples."""

    def __init__(self, store: Store, counting: Counting) -> None:
        super().__init__(store)
        self._counting = counting
        self.advise = store.advise  # type: ignore[method-assign]  # one call less

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        """Read from the store, and count the request."""
        store = self.store
        if not isinstance(store, RetryingStore):
            return self._read_once(store, path, first_byte, end_byte)
        what = describe_read(path, first_byte, end_byte)
        return retried(lambda: self._read_once(store.store, path, first_byte, end_byte), store.rule, what=what)

    def _read_once(self, store: Store, path: str, first_byte: int, end_byte: int) -> bytes:
        self._counting.began(end_byte - first_byte)
        try:
            return store.read_range(path, first_byte, end_byte)
        finally:
            self._counting.ended(end_byte - first_byte)


def unwrap_retries(store: Store) -> tuple[Store, RetryRule]:
    """Return the store without retries, and its rule: for callers that retry larger steps."""
    return (store.store, store.rule) if isinstance(store, RetryingStore) else (store, RetryRule())


def describe_read(path: str, first_byte: int, end_byte: int) -> str:
    """Return the end of the sentence "could not ..."."""
    return f"read bytes [{first_byte}, {end_byte}) of {without_secrets(path)}"


def with_retries(store: Store, storage_options: Mapping[str, Any] | None = None) -> Store:
    """Wrap the store with retries, unless it is local: files of this machine have no transient failures."""
    return store if isinstance(store, LocalStore) else RetryingStore(store, rule_of(storage_options))


def rule_of(storage_options: Mapping[str, Any] | None) -> RetryRule:
    """Return the retry rule for the options of a store; a deadline in them also limits the first contact."""
    seconds = deadline_of(storage_options)
    return RetryRule() if seconds is None else RetryRule(deadline_seconds=seconds, contact_seconds=seconds)
