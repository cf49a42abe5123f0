"""All exceptions that shoal raises, in one hierarchy.

::

    ShoalError
    ├── UsageError            an argument or a combination of arguments that is impossible (also a ValueError)
    │   ├── SourceError       a source that names no shards, or shards of unknown format
    │   └── NoSampleError     a sample id beyond the dataset (also an IndexError)
    ├── StateError            a state that does not belong to this dataset, order or version (also a ValueError)
    ├── IndexFileError        an index file that cannot be read, or describes other shards
    ├── ShardError            a shard whose bytes contradict its format or its index; knows shard and byte
    ├── StorageError          bytes that could not be read: missing, short, forbidden, unreachable (also an OSError)
    │   └── ForkError         an unsafe use of a stream in a forked child of the process that opened it
    └── WorkerError           a worker process that ended or did not answer in time (also a RuntimeError)

    MaskWarning               (a UserWarning) a mask of packed tokens that leaves out all tokens or none
    ShuffleWarning            (a UserWarning) an order that mixes less or reads more than usual

The message names the expected and the actual state; ``hint``, printed on a line of its own, names a remedy. Errors
cross process boundaries: each pickles with all of its attributes.
"""

from __future__ import annotations

from collections.abc import Hashable

__all__ = [
    "ForkError",
    "IndexFileError",
    "MaskWarning",
    "NoSampleError",
    "ShardError",
    "ShoalError",
    "ShuffleWarning",
    "SourceError",
    "StateError",
    "StorageError",
    "UsageError",
    "WorkerError",
]


class ShoalError(Exception):
    """Base class of all errors that shoal raises on purpose."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__.copy())


class UsageError(ShoalError, ValueError):
    """An argument, or a combination of arguments, that is impossible."""


class SourceError(UsageError):
    """A source that names no shards, or shards of unknown format."""


class NoSampleError(UsageError, IndexError):
    """A sample id beyond the dataset."""


class StateError(ShoalError, ValueError):
    """A state that does not belong to this dataset, order or version of shoal."""


class IndexFileError(ShoalError):
    """An index file that cannot be read, or describes other shards."""


class ShardError(ShoalError):
    """A shard whose bytes contradict its format or its index.

    ``shard`` is the shard's name, ``byte`` the first wrong byte of the shard (None if the error concerns the whole
    shard).
    """

    def __init__(self, message: str, *, shard: str, byte: int | None = None, hint: str = "") -> None:
        where = f"{shard}, byte {byte}" if byte is not None else shard
        super().__init__(f"{where}: {message}", hint=hint)
        self.shard = shard
        self.byte = byte


class StorageError(ShoalError, OSError):
    """Bytes that could not be read: missing, short, forbidden or unreachable.

    ``transient`` means that a retry may well succeed (a refused or broken connection, a time-out, 429 or 5xx, a short
    or wrong body); ``retry_after_seconds`` is the server's delay, if any. Other errors may still be worth
    ``worth_attempts`` attempts in all: one of several servers behind a name may have another version of an object. Only
    attempts with equal ``evidence`` count together. ``unmet`` means that the connection failed and the server has never
    answered; it may not exist.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        transient: bool = False,
        retry_after_seconds: float | None = None,
        worth_attempts: int = 1,
        evidence: Hashable = None,
        unmet: bool = False,
    ) -> None:
        super().__init__(message, hint=hint)
        self.transient = transient
        self.retry_after_seconds = retry_after_seconds
        self.worth_attempts = worth_attempts
        self.evidence = evidence
        self.unmet = unmet


class ForkError(StorageError):
    """An unsafe use of a stream in a forked child of the process that opened it."""


class WorkerError(ShoalError, RuntimeError):
    """A worker process of a loader that ended or did not answer in time."""


class MaskWarning(UserWarning):
    """A mask of packed tokens that leaves out all tokens or none."""


class ShuffleWarning(UserWarning):
    """An order that mixes less or reads more than usual."""


def _rebuild(kind: type[ShoalError], args: tuple[object, ...], state: dict[str, object]) -> ShoalError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
