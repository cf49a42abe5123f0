"""All exceptions that shoal raises, in one hierarchy.

::

    ShoalError
    ├── UsageError            an argument or a combination of arguments that cannot be carried out (also a ValueError)
    │   ├── SourceError       a source that names no shards, or shards of unknown format
    │   └── NoSampleError     a sample id beyond the dataset (also an IndexError)
    ├── StateError            a state that does not belong to this dataset, order or version (also a ValueError)
    ├── IndexFileError        an index file that cannot be read, or does not describe the shards it is used for
    ├── ShardError            a shard that does not hold what its format or its index says; knows shard and byte
    ├── StorageError          bytes that could not be read: missing, short, forbidden, unreachable (also an OSError)
    │   └── ForkError         a stream used in a forked child of the process that opened it, where that is not safe
    └── WorkerError           a worker process that ended or did not answer in time (also a RuntimeError)

    ShuffleWarning            (a UserWarning) the order is carried out, but mixes less or reads more than usually wanted

The message says what was expected and what was found; ``hint`` says what to do about it and is printed on a line of
its own. Errors cross process boundaries, so each one pickles with all of its attributes.
"""

from __future__ import annotations

from collections.abc import Hashable

__all__ = [
    "ForkError",
    "IndexFileError",
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
    """An argument, or a combination of arguments, that cannot be carried out."""


class SourceError(UsageError):
    """A source that names no shards, or shards of unknown format."""


class NoSampleError(UsageError, IndexError):
    """A sample id beyond the dataset."""


class StateError(ShoalError, ValueError):
    """A state that does not belong to this dataset, order or version of shoal."""


class IndexFileError(ShoalError):
    """An index file that cannot be read, or does not describe the shards it is used for."""


class ShardError(ShoalError):
    """A shard that does not hold what its format or its index says.

    ``shard`` is the shard's name, ``byte`` the first byte of the shard at which the mismatch shows (None if it concerns
    the shard as a whole).
    """

    def __init__(self, message: str, *, shard: str, byte: int | None = None, hint: str = "") -> None:
        where = f"{shard}, byte {byte}" if byte is not None else shard
        super().__init__(f"{where}: {message}", hint=hint)
        self.shard = shard
        self.byte = byte


class StorageError(ShoalError, OSError):
    """Bytes that could not be read: missing, short, forbidden or unreachable.

    ``transient`` means that a retry may well succeed (a refused or broken connection, a time-out, 429 or 5xx, a short
    or wrong body); ``retry_after_seconds`` is the delay that the server asked for, if any. An error that is not
    transient may still be worth ``worth_attempts`` attempts in all: one of several servers behind a name may show
    another version of an object. Attempts are counted together only if their ``evidence`` is equal. ``unmet``: no
    connection was made and this server has never answered; it may not exist.
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
    """A stream used in a forked child of the process that opened it, where that is not safe."""


class WorkerError(ShoalError, RuntimeError):
    """A worker process of a loader that ended or did not answer in time."""


class ShuffleWarning(UserWarning):
    """The order is carried out as requested, but mixes less or reads more than is usually wanted."""


def _rebuild(kind: type[ShoalError], args: tuple[object, ...], state: dict[str, object]) -> ShoalError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
