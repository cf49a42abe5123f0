"""Speculative reads of one remote shard: windows that its scan will ask for, found from guessed starts further on.

The headers of a shard are a chain, in which each says where the next one lies: with large members, a round trip each.
If a format can guess where a record begins (`Format.likely_start`), several parts of the chain are followed at once: a
walk scans the shard from a guessed start, and its windows are kept. The scan from the front stays as it is. Once it
comes to a header of such a walk, both ask for the same windows, and the scan gets them without requests. A wrong guess
costs time and bytes, and cannot change the result.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from shoal.errors import ShardError
from shoal.formats.shard_format import Format
from shoal.index.shard_scan import Buffer
from shoal.indexing.scan.costs import REACH_BYTES, ReadCosts

_MOST_KEPT_BYTES = 2 << 20  # of a walk, like a block of a stream
_MOST_USELESS = 4  # walks that did not serve a single window


class _WalkOverError(Exception):
    """The walk has come to its end, or has read as much as it may."""


@dataclass(slots=True, eq=False)
class _Walk:
    """One walk through the bytes ``[first_byte, end_byte)``, and the windows that it has read, by their first bytes."""

    first_byte: int
    end_byte: int
    search_bytes: int  # of a request that looks for a start
    left_bytes: int  # that may still be read
    windows: dict[int, bytes] = field(default_factory=dict)
    kept_bytes: int = 0
    newest: int = -1  # window
    is_over: bool = False
    is_stopped: bool = False
    is_useful: bool = False
    future: Future[None] | None = None
    block: bytes = b""  # as read last
    block_byte: int = 0

    def stop(self) -> None:
        """Make no further request."""
        self.is_stopped = True
        if self.future is not None:
            self.future.cancel()


class SpeculativeReads:
    """Windows of one shard that are read ahead of its scan, by walks of which ``plan`` says where they pay.

    All walks together read at most half of the shard, a sixteenth as a rule, and each keeps at most 2 MiB of windows.
    """

    def __init__(
        self,
        fetch: Callable[[int, int], bytes],
        format: Format,  # noqa: A002
        num_bytes: int,
        *,
        plan: WalkPlan,
        threads: Executor,
    ) -> None:
        self._fetch, self._format, self._num_bytes = fetch, format, num_bytes
        self._plan, self._threads = plan, threads
        self._walks: deque[_Walk] = deque()  # consecutive, without gaps
        self._changed = threading.Condition()
        self._num_useless = 0
        self._left_bytes = num_bytes // 2  # that walks may still read

    def asked(self, first_byte: int, end_byte: int) -> bool:
        """Record a range that the scan asked for, wherever its bytes come from; return True if walks are of use now."""
        pays = self._plan.asked(first_byte, end_byte) and self._num_useless < _MOST_USELESS
        return pays or bool(self._walks)

    def window(self, first_byte: int, end_byte: int) -> bytes | None:
        """Return bytes from ``first_byte`` on, at least up to ``end_byte``, if a walk has read them, or is about to.

        Begins walks as soon as they pay.
        """
        walks = self._walks
        while walks and walks[0].end_byte <= first_byte:
            self._num_useless = 0 if walks[0].is_useful else self._num_useless + 1
            walks.popleft().stop()
        self._begin_walks(first_byte)
        if not walks or first_byte < walks[0].first_byte:
            return None
        walk = walks[0]
        if walk.future is not None and walk.future.cancel():  # all threads are busy elsewhere
            walk.is_over = True
        with self._changed:
            self._changed.wait_for(lambda: walk.is_over or walk.newest >= first_byte)
            data = walk.windows.pop(first_byte, b"")
        if len(data) < end_byte - first_byte:
            return None
        walk.is_useful = True
        return data

    def close(self) -> None:
        """Stop all walks and drop what they have read."""
        while self._walks:
            self._walks.pop().stop()

    def _begin_walks(self, first_byte: int) -> None:
        span_bytes = self._plan.span_bytes(first_byte)
        if not span_bytes or self._num_useless >= _MOST_USELESS:
            return
        walks = self._walks
        while len(walks) < self._plan.most_walks:
            # What lies before the first walk is the scan's own part.
            begin = walks[-1].end_byte if walks else (first_byte + span_bytes) & -ALIGNMENT_BYTES
            end = min(begin + span_bytes, self._num_bytes)
            if self._num_bytes - end < span_bytes // 2:
                end = self._num_bytes
            if end - begin < span_bytes // 2:
                return
            walk = _Walk(begin, end, self._plan.search_bytes, left_bytes=(end - begin) // 2)
            walk.future = self._threads.submit(self._run, walk)
            walks.append(walk)

    def _run(self, walk: _Walk) -> None:
        """Follow the chain from the first likely start, and again from behind the place where a chain broke off."""
        try:
            start = self._likely_start(walk, walk.first_byte)
            while start is not None:
                with suppress(ShardError):
                    self._scan_from(walk, start)
                start = self._likely_start(walk, max(start, walk.newest) + 1)
        except _WalkOverError:
            pass
        finally:
            with self._changed:
                walk.is_over, walk.block = True, b""
                self._changed.notify_all()

    def _scan_from(self, walk: _Walk, start: int) -> None:
        def read(first_byte: int, end_byte: int, /) -> Buffer:
            return self._kept_window(walk, start + first_byte, start + end_byte)

        self._format.scan(read, self._num_bytes - start, shard="")

    def _kept_window(self, walk: _Walk, first_byte: int, end_byte: int) -> bytes:
        if first_byte >= walk.end_byte or walk.kept_bytes >= _MOST_KEPT_BYTES:
            raise _WalkOverError
        if not walk.block_byte <= first_byte <= end_byte <= walk.block_byte + len(walk.block):
            self._read_block(walk, first_byte, max(end_byte, first_byte + REACH_BYTES))
        window = walk.block[first_byte - walk.block_byte : end_byte - walk.block_byte]
        with self._changed:
            walk.windows[first_byte] = window
            walk.kept_bytes += len(window)
            walk.newest = max(walk.newest, first_byte)
            self._changed.notify_all()
        return window

    def _likely_start(self, walk: _Walk, position: int) -> int | None:
        """Return the first likely start from ``position`` on; None if there is none before the end of the walk."""
        while position < walk.end_byte:
            block_end = walk.block_byte + len(walk.block)
            if not walk.block_byte <= position < block_end:
                block_end = (position + walk.search_bytes + ALIGNMENT_BYTES) & -ALIGNMENT_BYTES
                self._read_block(walk, position, block_end)
            start = self._format.likely_start(memoryview(walk.block)[position - walk.block_byte :], position)
            if start is not None:
                return start if start < walk.end_byte else None
            position = walk.block_byte + len(walk.block)
        return None

    def _read_block(self, walk: _Walk, first_byte: int, end_byte: int) -> None:
        end_byte = min(end_byte, self._num_bytes)
        with self._changed:
            num_bytes = end_byte - first_byte
            if walk.is_stopped or num_bytes > min(walk.left_bytes, self._left_bytes):
                raise _WalkOverError
            walk.left_bytes -= num_bytes
            self._left_bytes -= num_bytes
        walk.block, walk.block_byte = self._fetch(first_byte, end_byte), first_byte


ALIGNMENT_BYTES = 4096
"""The first byte of a walk is a multiple of this."""

_LEAST_REQUESTS = 4  # of the scan itself, before it is known how far apart headers are
_SMOOTHING = 16  # distances that are averaged
_LEAST_HEADERS = 8  # of a walk, which then reads a sixteenth of the bytes on average to find its start
_MOST_HEADERS = 512  # of a walk, as 2 KiB are kept of each
_LEAST_SEARCH_BYTES, _MOST_SEARCH_BYTES = 64 << 10, 2 << 20  # of one request


class Walks(NamedTuple):
    """Expected walks through the rest of a shard; and of each, what finding its start takes."""

    num_walks: int
    num_at_once: int
    search_requests: float
    search_bytes: float


NO_WALKS = Walks(0, 0, 0.0, 0.0)


class WalkPlan:
    """Running estimate of the distance between the headers of one shard, and the length of walks that pay.

    At most ``most_walks`` are made at a time.
    """

    def __init__(self, costs: ReadCosts, num_bytes: int, *, most_walks: int) -> None:
        self.most_walks = most_walks
        self._costs, self._num_bytes = costs, num_bytes
        self._num_requests = self._first = self._end = self._reached = 0
        self._distance = 0.0

    def asked(self, first_byte: int, end_byte: int) -> bool:
        """Record a range that the scan asked for, wherever its bytes come from; return True if walks would pay now."""
        if first_byte >= self._reached:
            if self._reached:
                self._num_requests += 1
                distance = 0 if first_byte == self._end else first_byte - self._first
                self._distance += (distance - self._distance) / min(self._num_requests, _SMOOTHING)
            self._first, self._reached = first_byte, first_byte + REACH_BYTES
        self._reached = max(self._reached, end_byte)
        self._end = end_byte
        return self._span_bytes(first_byte) > 0

    @property
    def search_bytes(self) -> int:
        """Bytes of one request that looks for a start."""
        return min(max(int(self._distance) // 4, _LEAST_SEARCH_BYTES), _MOST_SEARCH_BYTES)

    def expected(self, first_byte: int) -> Walks:
        """Return the walks that a scan would begin at ``first_byte``, and later."""
        span_bytes = self.span_bytes(first_byte)
        if not span_bytes:
            return NO_WALKS
        num_walks = (self._num_bytes - first_byte) // span_bytes - 1
        search_bytes = (self._distance + self.search_bytes) / 2
        return Walks(num_walks, min(num_walks, self.most_walks), search_bytes / self.search_bytes, search_bytes)

    def span_bytes(self, first_byte: int) -> int:
        """Return the bytes that each walk should pass if the scan is at ``first_byte``; 0 if none should be made."""
        return self._span_bytes(first_byte) if self._num_requests >= _LEAST_REQUESTS else 0

    def _span_bytes(self, first_byte: int) -> int:
        if self.most_walks < 1 or self._distance <= REACH_BYTES:
            return 0
        # The saved requests are to count for twice the bytes that finding a start takes.
        num_headers = max(_LEAST_HEADERS, self._distance / max(1, self._costs.request_bytes()))
        least_bytes = int(self._distance * num_headers)
        left_bytes = self._num_bytes - first_byte - max(0, _LEAST_REQUESTS - self._num_requests) * int(self._distance)
        if left_bytes < 2 * least_bytes:
            return 0
        most_bytes = max(least_bytes, int(self._distance * _MOST_HEADERS))
        return min(max(least_bytes, left_bytes // (self.most_walks + 1)), most_bytes) & -ALIGNMENT_BYTES
