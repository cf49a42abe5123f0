"""Injected faults: their kinds, their frequency, and the affected requests."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Container, Sequence
from dataclasses import KW_ONLY, dataclass
from fnmatch import fnmatchcase
from typing import Literal, get_args

from shoal.errors import UsageError
from shoal.order.seeds import check_seed, key

FaultKind = Literal[
    "status",
    "reset",
    "reset_in_body",
    "truncate",
    "stall",
    "slow",
    "trickle",
    "trickle_head",
    "corrupt",
    "changed",
    "whole",
    "wrong_range",
    "short_range",
]

FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
"""Every kind of fault."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault, and the affected requests.

    =================  ===============================================================================================
    kind               effect on the client
    =================  ===============================================================================================
    ``status``         the response is ``status`` (503), with Retry-After if ``retry_after_seconds`` is given
    ``reset``          the connection is reset before the response
    ``reset_in_body``  the connection is reset half-way through the body
    ``truncate``       the body ends half-way, and the connection is closed cleanly
    ``stall``          half of the body, ``seconds`` of silence, the rest
    ``slow``           ``seconds`` of silence, then a good response: a straggler
    ``trickle``        a good response, its body byte by byte, with ``seconds`` of silence after each
    ``trickle_head``   the same for the head: status and headers
    ``corrupt``        one bit of the body is silently flipped
    ``changed``        the object has another etag, as after a rewrite (its bytes stay the same)
    ``whole``          200 and the whole object, as from a server without range support
    ``wrong_range``    206 with another range of the same length, and a matching Content-Range
    ``short_range``    206 with the first half of the range, and a matching Content-Range
    =================  ===============================================================================================

    A fault affects a request with ``probability``, or if the number of the request is in ``requests``; numbers count
    from 0, over all requests with a path that matches ``path`` (an `fnmatch` pattern). The first fault in a list that
    affects a request wins.

    Examples
    --------
    >>> shoal.testing.Fault("status", probability=0.1, status=429, retry_after_seconds=1).happens(number=0, draw=0.05)
    True
    >>> shoal.testing.Fault("changed", requests=range(100, 10**9), path="*.tar").happens(number=99, draw=0.0)
    False
    """

    kind: FaultKind
    _: KW_ONLY
    probability: float = 0.0
    requests: Container[int] = ()
    path: str = "*"
    status: int = 503
    retry_after_seconds: float | None = None
    seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.kind not in FAULT_KINDS:
            raise UsageError(f"there is no fault {self.kind!r}", hint=f"there are {', '.join(FAULT_KINDS)}")
        if not 0 <= self.probability <= 1:
            raise UsageError(f"probability={self.probability}: a probability is from 0 to 1")

    def happens(self, *, number: int, draw: float) -> bool:
        """Return True if the fault affects matching request ``number``, given a random ``draw`` from [0, 1)."""
        return draw < self.probability or number in self.requests


@dataclass(frozen=True, slots=True)
class Mishap:
    """A fault of one request, and 64 random bits for its further choices."""

    fault: Fault
    bits: int


class FaultPlan:
    """A plan of faults by request, from a seed.

    The draw of a probable fault depends on the seed, on the target (the last part of the path, and the range), and on
    the number of earlier requests for the target. It does not depend on the order of connections, or on the name of a
    temporary directory. So a test with many connections meets the same faults each time if it requests the same ranges.
    """

    def __init__(self, faults: Sequence[Fault] = (), *, seed: int = 0) -> None:
        self.faults = tuple(faults)
        self._seed = check_seed(seed)
        self._lock = threading.Lock()
        self._num_matching = [0] * len(self.faults)
        self._num_earlier: dict[tuple[str, int, int], int] = {}

    def draw(self, path: str, first_byte: int = 0, end_byte: int = 0) -> Mishap | None:
        """Return the fault of the next request, for these bytes of ``path``, or None."""
        with self._lock:
            target = (path, first_byte, end_byte)
            before = self._num_earlier[target] = self._num_earlier.get(target, -1) + 1
            drawn = None
            name = zlib.crc32(path.rpartition("/")[2].encode())
            for position, fault in enumerate(self.faults):
                if not fnmatchcase(path, fault.path):
                    continue
                number = self._num_matching[position]
                self._num_matching[position] += 1
                bits = key(self._seed, 0, "fault", position, name, first_byte, end_byte, before)
                if drawn is None and fault.happens(number=number, draw=(bits >> 11) / 2**53):
                    drawn = Mishap(fault, key(bits, 0, "choice"))
            return drawn
