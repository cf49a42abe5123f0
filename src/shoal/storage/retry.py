"""What is worth trying again is tried again: with growing, random pauses, until a deadline.

A pause is drawn anew each time from zero to a bound that doubles ("full jitter"): clients that failed together must not
come back together. Whoever runs a thread says with `patience` how its pauses end and where its retries are counted, so
that closing a stream does not wait for a server that is down. What takes more than a few seconds is logged.

References
----------
M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

from __future__ import annotations

import errno
import itertools
import logging
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from shoal.errors import StorageError
from shoal.storage.files.local_store import LocalStore
from shoal.storage.remote_objects import ReadsRanges, read_whole, whole
from shoal.storage.store import Buffer, ObjectInfo, Reader, ReadRange, Store
from shoal.storage.stores import DEADLINE, deadline_of
from shoal.storage.urls import without_secrets

__all__ = [
    "Patience",
    "RetryRule",
    "RetryingStore",
    "StoppedError",
    "patience",
    "patience_here",
    "patient",
    "reading_of",
    "retried",
    "rule_of",
    "tries_of",
]

_log = logging.getLogger("shoal")

_TOLD_AFTER_SECONDS = 5.0
_TOLD_EVERY_SECONDS = 30.0
_told_seconds = -math.inf

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class RetryRule:
    """How long to go on: pauses of up to ``first_pause_seconds``, doubling to ``most_pause_seconds``.

    While the store answers other requests, pauses grow to ``lively_pause_seconds`` only: it is not down, and longer
    ones would relieve nobody. After ``deadline_seconds`` since a request was first made it is not made again; where the
    server has never answered (`StorageError.unmet`), after ``contact_seconds``: a wrong port or name is more likely
    than a server that is about to start. A server's own wish (`StorageError.retry_after_seconds`) lengthens a pause.
    """

    first_pause_seconds: float = 0.1
    most_pause_seconds: float = 10.0
    lively_pause_seconds: float = 1.0
    deadline_seconds: float = 120.0
    contact_seconds: float = 10.0

    def pause_seconds(self, attempt: int, asked_seconds: float | None, *, is_lively: bool = False) -> float:
        """How long to wait after failed attempt number ``attempt``, from 1."""
        most_seconds = min(self.most_pause_seconds, self.lively_pause_seconds if is_lively else math.inf)
        bound = min(most_seconds, self.first_pause_seconds * 2.0 ** min(attempt - 1, 60))
        return (asked_seconds or 0.0) + _fraction() * bound


@dataclass(frozen=True, slots=True)
class Patience:
    """How requests of one thread wait.

    ``pause`` waits so many seconds and says whether everything is to stop; ``retried`` is told of each failure that
    is followed by another try. ``deadline_seconds`` replaces that of the rule. ``is_lively`` says whether the store
    answers others meanwhile.
    """

    pause: Callable[[float], bool]
    retried: Callable[[StorageError], None]
    deadline_seconds: float | None = None
    is_lively: Callable[[], bool] = bool


class StoppedError(StorageError):
    """A request that was given up because nobody waits for it any more."""


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _nobody(_: StorageError) -> None:
    return None


class _Here(threading.local):
    patience = Patience(_sleep, _nobody)


_here = _Here()


@contextmanager
def patience(how: Patience) -> Iterator[None]:
    """While this lasts, requests of this thread wait as ``how`` says."""
    before, _here.patience = _here.patience, how
    try:
        yield
    finally:
        _here.patience = before


def patience_here() -> Patience:
    """How requests of this thread wait, for other threads that make some on its behalf."""
    return _here.patience


def retried(
    call: Callable[[], _Result],
    rule: RetryRule,
    *,
    what: str | Callable[[], str],
    began_seconds: float | None = None,
) -> _Result:
    """The result of ``call``, which is made again as long as its errors are transient and the deadline is not over.

    ``what``, or what it returns, ends the sentence "could not ...", without secrets. Who waited for something else
    before says when that began, by `time.monotonic`.

    Raises
    ------
    StorageError
        The last answer, if it was final (or came, with the same evidence, as often as it is worth attempts); else,
        after the deadline, one that says how often it was tried, chained to the last answer and no longer transient.
    """
    how = _here.patience
    deadline_seconds = rule.deadline_seconds if how.deadline_seconds is None else how.deadline_seconds
    began = time.monotonic() if began_seconds is None else began_seconds
    num_final: Counter[Hashable] = Counter()
    for attempt in itertools.count(1):
        try:
            return call()
        except StorageError as error:
            if not error.transient:
                # Of one server that lags among many, answers differ in what they say, or good ones come in between.
                num_final[error.evidence] += 1
                if num_final[error.evidence] >= error.worth_attempts:
                    raise
            passed_seconds, done = time.monotonic() - began, what if isinstance(what, str) else what()
            pause_seconds = rule.pause_seconds(attempt, error.retry_after_seconds, is_lively=how.is_lively())
            if error.unmet:
                deadline_seconds = min(deadline_seconds, rule.contact_seconds)
            if passed_seconds + pause_seconds > deadline_seconds:
                raise _given_up(error, done, attempt, passed_seconds, deadline_seconds) from error
            how.retried(error)
            if passed_seconds + pause_seconds >= _TOLD_AFTER_SECONDS:
                _tell(error, done, attempt, passed_seconds, deadline_seconds)
            if how.pause(pause_seconds):
                msg = f"could not {done}: the stream was closed while this was tried again"
                raise StoppedError(msg) from error
    raise AssertionError  # pragma: no cover - the loop has no end


def _tell(last: StorageError, what: str, num_attempts: int, passed_seconds: float, deadline_seconds: float) -> None:
    """Log that something takes long, so that nobody wonders; now and then, however many requests fail."""
    global _told_seconds  # noqa: PLW0603  # there is one process
    now = time.monotonic()
    if now - _told_seconds >= _TOLD_EVERY_SECONDS:
        _told_seconds = now
        text = "could not %s until now (attempt %d, after %.1f s), and goes on until %g s are over; the last answer: %s"
        _log.warning(text, what, num_attempts, passed_seconds, deadline_seconds, last.message)


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
        hint += f" (to wait longer for one that is about to start: --deadline, or {DEADLINE} in storage_options)"
    if (asked_seconds := last.retry_after_seconds) is not None:
        msg += f" (the server asked to wait {asked_seconds:g} s)"
        if asked_seconds > deadline_seconds:
            hint += f"; a stream with reading(deadline={2 * math.ceil(asked_seconds)}) waits that long"
    return StorageError(msg, hint=hint)


def _fraction() -> float:
    """A number in [0, 1) that no other process draws at the same moment; nothing that is streamed depends on it."""
    return int.from_bytes(os.urandom(8), "little") / 2**64


class RetryingStore:
    """A store whose transient failures are tried again; otherwise it does, and raises, what ``store`` does.

    Pickles with what it wraps.
    """

    def __init__(self, store: Store, rule: RetryRule | None = None) -> None:
        self.store = store
        self.rule = RetryRule() if rule is None else rule

    def __reduce__(self) -> tuple[object, ...]:
        return RetryingStore, (self.store, self.rule)

    @property
    def reads_ahead(self) -> bool:
        """Whether the store reads ahead when it is told what comes."""
        return self.store.reads_ahead

    def advise(self, path: str, first_byte: int, end_byte: int) -> None:
        """Nothing: a store that must be tried again is not told."""

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        """Exactly the bytes ``[first_byte, end_byte)`` of ``path``."""
        what = reading_of(path, first_byte, end_byte)
        return retried(lambda: self.store.read_range(path, first_byte, end_byte), self.rule, what=what)

    def reader(self, path: str) -> Reader:
        """Reads parts of one object, each tried again by itself."""
        return ReadsRanges(self, path)

    def stat(self, path: str) -> ObjectInfo:
        """What the store says of ``path``."""
        return retried(lambda: self.store.stat(path), self.rule, what=f"look at {without_secrets(path)}")

    def look_again(self, path: str) -> ObjectInfo:
        """The same, asked anew where the store can do that."""
        look = getattr(self.store, "look_again", self.store.stat)
        return retried(lambda: look(path), self.rule, what=f"look at {without_secrets(path)}")

    def find(self, path: str) -> ObjectInfo | None:
        """The same, or None where nothing of that name is there."""
        return retried(lambda: self.store.find(path), self.rule, what=f"look for {without_secrets(path)}")

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object below the directory ``prefix``, sorted by path."""
        # As a whole: one that goes on after a failure could leave out or repeat.
        whole = retried(lambda: [*self.store.list(prefix)], self.rule, what=f"list {without_secrets(prefix)}")
        return iter(whole)

    def put(self, path: str, data: Buffer | Sequence[Buffer]) -> None:
        """Write the whole object; to write it twice is to write it once."""
        retried(lambda: self.store.put(path, data), self.rule, what=f"write {without_secrets(path)}")

    def put_if(self, path: str, data: Buffer | Sequence[Buffer], *, replaces: ObjectInfo | None) -> bool:
        """Write the whole object if the one there is still ``replaces``; whether it was.

        Where the answer to a first try was lost, a later one may find what it wrote: so what is there is compared then.
        """
        store = self.store
        if not hasattr(store, "put_if"):
            msg = f"could not write {without_secrets(path)} on condition: this kind of store cannot compare"
            error = StorageError(msg)
            error.errno = errno.ENOTSUP
            raise error
        num_tries = 0

        def once() -> bool:
            nonlocal num_tries
            num_tries += 1
            was_written = bool(store.put_if(path, data, replaces=replaces))
            return was_written or (num_tries > 1 and _holds(store, path, data))

        return retried(once, self.rule, what=f"write {without_secrets(path)}")

    def delete(self, path: str) -> None:
        """Remove the object; to remove it twice is to remove it once."""
        retried(lambda: self.store.delete(path), self.rule, what=f"remove {without_secrets(path)}")

    def map(self, path: str) -> memoryview:
        """The whole object, read in pieces of which each is tried again by itself."""
        return read_whole(self, path)

    def close(self) -> None:
        """Let go of connections, and forget what objects looked like."""
        self.store.close()


def _holds(store: Store, path: str, data: Buffer | Sequence[Buffer]) -> bool:
    """Whether these bytes are the whole object; read only if they are as many."""
    wanted = whole(data)
    found = store.find(path)
    return found is not None and found.num_bytes == len(wanted) and read_whole(store, path) == wanted


def tries_of(store: ReadRange) -> tuple[ReadRange, RetryRule]:
    """A store that tries once, and the rule by which ``store`` would try again: for who does more in each try."""
    return (store.store, store.rule) if isinstance(store, RetryingStore) else (store, RetryRule())


def reading_of(path: str, first_byte: int, end_byte: int) -> str:
    """What is done, for the sentence "could not ..."."""
    return f"read bytes [{first_byte}, {end_byte}) of {without_secrets(path)}"


def patient(store: Store, storage_options: Mapping[str, Any] | None = None) -> Store:
    """The store with retries, if it is one that may fail for a while: files of this machine do not."""
    return store if isinstance(store, LocalStore) else RetryingStore(store, rule_of(storage_options))


def rule_of(storage_options: Mapping[str, Any] | None) -> RetryRule:
    """How long to go on by the options of a store; a deadline that was asked for holds at first contact too."""
    seconds = deadline_of(storage_options)
    return RetryRule() if seconds is None else RetryRule(deadline_seconds=seconds, contact_seconds=seconds)
