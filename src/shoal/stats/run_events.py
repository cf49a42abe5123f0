"""Events of a run for a listener: requests, waits for bytes, and stages. Without a listener, the calls do nothing."""

from __future__ import annotations

from typing import Protocol, TypeVar

T = TypeVar("T")


class RunEvents(Protocol):
    """Listener of a run's events; each method is called in the thread of its event, so it must be thread-safe.

    Times are readings of `time.perf_counter` in seconds.
    """

    def request_began(self, num_bytes: int) -> None:
        """Record that this thread begins an attempt of a request to the store."""

    def request_ended(self, num_bytes: int) -> None:
        """Record that the attempt of this thread was answered, or failed."""

    def request_retried(self, error: Exception) -> None:
        """Record that the latest attempt of this thread failed, and will be retried."""

    def waited(self, began: float, ended: float, num_bytes: int) -> None:
        """Record a wait for bytes in this thread; it read ``num_bytes`` itself, or 0 if other threads read."""

    def timed(self, stages: tuple[T, ...]) -> tuple[T, ...]:
        """Return the stages to run in place of these stages: the same results, with their times recorded."""


class NoListener:
    """The listener of a run to which nobody listens."""

    __slots__ = ()

    def request_began(self, num_bytes: int) -> None:
        """Do nothing."""

    def request_ended(self, num_bytes: int) -> None:
        """Do nothing."""

    def request_retried(self, error: Exception) -> None:
        """Do nothing."""

    def waited(self, began: float, ended: float, num_bytes: int) -> None:
        """Do nothing."""

    def timed(self, stages: tuple[T, ...]) -> tuple[T, ...]:
        """Return the stages unchanged."""
        return stages


IGNORED: RunEvents = NoListener()
"""The listener of a run to which nobody listens."""
