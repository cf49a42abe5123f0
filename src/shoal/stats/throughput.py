"""Throughput of one iterator, and its bottleneck: the storage, the stages, or the consumer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol


class _Counted(Protocol):
    """Counts that exist anyway."""

    num_samples: int
    num_requests: int
    read_bytes: int
    wait_seconds: float
    make_seconds: float


class Throughput:
    """The time of one iterator, from its first ``next()`` to the end of its latest, in three parts.

    Outside of ``next()`` the consumer does its own work. Inside, it waits for bytes, or for their processing (decoding,
    functions, batches). If batches are made elsewhere, by a thread or by processes, `add` records the time inside,
    which is split in the proportions of theirs. An iterator that makes its own batches counts that time anyway
    (``make_seconds``), and only sets ``first`` and ``last``: a call of `add` for every sample would be noticeable.

    >>> times = iter([0.0, 3.0, 4.0, 8.0])
    >>> class counted: num_samples, num_requests, read_bytes, wait_seconds, make_seconds = 0, 0, 0, 0.0, 0.0
    >>> throughput = Throughput(counted, clock=lambda: next(times))
    >>> for _ in range(2):
    ...     began = throughput.clock(); counted.wait_seconds += 2.5; counted.num_samples += 4
    ...     ended = throughput.clock(); counted.make_seconds += ended - began; throughput.add(began, ended)
    >>> throughput.rates()["samples_per_second"], throughput.rates()["wait_share"], throughput.rates()["bottleneck"]
    (1.0, 0.625, 'storage')
    """

    __slots__ = ("_before", "_counted", "_inside_seconds", "clock", "first", "last")

    def __init__(self, counted: _Counted, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._counted = counted
        self._before = _numbers_of(counted)
        self.first: float | None = None
        self.last = 0.0
        self._inside_seconds: float | None = None

    def add(self, began: float, ended: float) -> None:
        """Record a ``next()`` that began and ended at these readings of `clock`."""
        if self.first is None:
            self.first = began
        self._inside_seconds = (self._inside_seconds or 0.0) + ended - began
        self.last = ended

    def rates(self) -> dict[str, Any]:
        """Return rates and shares by name; before any measurement rates are 0, shares and the bottleneck None.

        ``bottleneck`` is the part with the largest share: "storage", "stages" or "consumer".
        """
        elapsed = 0.0 if self.first is None else self.last - self.first
        samples, requests, read_bytes, wait, make = (
            now - before for now, before in zip(_numbers_of(self._counted), self._before, strict=True)
        )
        rates: dict[str, Any] = {
            "elapsed_seconds": elapsed,
            "samples_per_second": samples / elapsed if elapsed else 0.0,
            "requests_per_second": requests / elapsed if elapsed else 0.0,
            "read_bytes_per_second": read_bytes / elapsed if elapsed else 0.0,
            "wait_share": None,
            "stages_share": None,
            "bottleneck": None,
        }
        if elapsed:
            inside = min(1.0, (make if self._inside_seconds is None else self._inside_seconds) / elapsed)
            rates["wait_share"] = inside * (min(1.0, wait / make) if make else 0.0)
            rates["stages_share"] = inside - rates["wait_share"]
            rates["bottleneck"] = _largest(rates["wait_share"], rates["stages_share"])
        return rates


def _numbers_of(counted: _Counted) -> tuple[int, int, int, float, float]:
    seconds = counted.wait_seconds, counted.make_seconds
    return counted.num_samples, counted.num_requests, counted.read_bytes, *seconds


def _largest(wait_share: float, stages_share: float) -> str:
    shares = {"storage": wait_share, "stages": stages_share, "consumer": 1.0 - wait_share - stages_share}
    return max(shares, key=lambda name: shares[name])
