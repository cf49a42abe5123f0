"""Speculative reads of one remote shard: windows that its scan will need, from guessed starts further on.

The headers of a shard are a chain: each points to the next. With large members, each header costs a round trip. If a
format can guess the start of a record (`Format.likely_start`), several parts of the chain are followed at once: a walk
scans the shard from a guessed start, and keeps its reads. The scan from the front does not change. Once the scan comes
to a header of a walk, the scan uses the windows of the walk without requests. A wrong guess costs time and
bytes, and cannot change the result.

A walk costs the bytes before the first header after its guess, half a member on average, and saves the scan a round
trip for each header. `shoal.indexing.scan.costs` has the price of a round trip in bytes.
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

ALIGNMENT_BYTES = 4096
"""The first byte of a walk is a multiple of this."""

_LEAST_REQUESTS = 4  # of the scan, before the distance of headers is known
_SMOOTHING = 16  # distances in the average
_LEAST_HEADERS = 8  # of a walk, which then reads a sixteenth of its bytes on average to find its start
_MOST_HEADERS = 512  # of a walk, as 2 KiB are kept for each
_LEAST_SEARCH_BYTES, _MOST_SEARCH_BYTES = 64 << 10, 2 << 20  # of one request
_MOST_KEPT_BYTES = 2 << 20  # of a walk, like a block of a stream
_MOST_USELESS = 4  # walks that did not serve a single window


class Walks(NamedTuple):
    """Expected walks through the rest of a shard, and the cost of finding the start of each."""

    num_walks: int
    num_at_once: int
    search_requests: float
    search_bytes: float


NO_WALKS = Walks(0, 0, 0.0, 0.0)


class WalkPlan:
    """Running estimate of the distance between the headers of one shard, and the length of worthwhile walks.

    At most ``most_walks`` run at a time.
    """

    def __init__(self, costs: ReadCosts, num_bytes: int, *, most_walks: int) -> None:
        self.most_walks = most_walks
        self._costs, self._num_bytes = costs, num_bytes
        self._num_requests = self._first = self._end = self._reached = 0
        self._distance = 0.0

    def record(self, first_byte: int, end_byte: int) -> bool:
        """Record a range that the scan reads; return True if walks are worthwhile now."""
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
        """Bytes of one request that searches for a start."""
        return min(max(int(self._distance) // 4, _LEAST_SEARCH_BYTES), _MOST_SEARCH_BYTES)

    def expected(self, first_byte: int) -> Walks:
        """Return the walks that a scan would begin from ``first_byte`` on."""
        span_bytes = self.span_bytes(first_byte)
        if not span_bytes:
            return NO_WALKS
        num_walks = (self._num_bytes - first_byte) // span_bytes - 1
        search_bytes = (self._distance + self.search_bytes) / 2
        return Walks(num_walks, min(num_walks, self.most_walks), search_bytes / self.search_bytes, search_bytes)

    def span_bytes(self, first_byte: int) -> int:
        """Return the bytes for each walk if the scan is at ``first_byte``; 0 if walks are not worthwhile."""
        return self._span_bytes(first_byte) if self._num_requests >= _LEAST_REQUESTS else 0

    def _span_bytes(self, first_byte: int) -> int:
        if self.most_walks < 1 or self._distance <= REACH_BYTES:
            return 0
        # The saved requests should be worth twice the bytes of finding a start.
        num_headers = max(_LEAST_HEADERS, self._distance / max(1, self._costs.request_bytes()))
        least_bytes = int(self._distance * num_headers)
        left_bytes = self._num_bytes - first_byte - max(0, _LEAST_REQUESTS - self._num_requests) * int(self._distance)
        if left_bytes < 2 * least_bytes:
            return 0
        most_bytes = max(least_bytes, int(self._distance * _MOST_HEADERS))
        return min(max(least_bytes, left_bytes // (self.most_walks + 1)), most_bytes) & -ALIGNMENT_BYTES


class _WalkOverError(Exception):
    """The walk has ended, or has reached its byte limit."""


@dataclass(slots=True, eq=False)
class _Walk:
    """One walk through the bytes ``[first_byte, end_byte)``, and its windows by first byte."""

    first_byte: int
    end_byte: int
    search_bytes: int  # of a request that searches for a start
    left_bytes: int  # that may still be read
    windows: dict[int, bytes] = field(default_factory=dict)
    kept_bytes: int = 0
    newest: int = -1  # window
    is_over: bool = False
    is_stopped: bool = False
    is_useful: bool = False
    future: Future[None] | None = None
    block: bytes = b""  # the latest read
    block_byte: int = 0

    def stop(self) -> None:
        """Make no further request."""
        self.is_stopped = True
        if self.future is not None:
            self.future.cancel()


class SpeculativeReads:
    """Windows of one shard, read ahead of its scan by walks; walks start only where ``plan`` finds a walk worthwhile.

    All walks together read at most half of the shard, usually a sixteenth; each walk keeps at most 2 MiB of windows.
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

    def record(self, first_byte: int, end_byte: int) -> bool:
        """Record a range that the scan reads; return True if walks run or are worthwhile now."""
        is_worthwhile = self._plan.record(first_byte, end_byte) and self._num_useless < _MOST_USELESS
        return is_worthwhile or bool(self._walks)

    def window(self, first_byte: int, end_byte: int) -> bytes | None:
        """Return bytes from ``first_byte`` on, at least up to ``end_byte``, if a walk has read them or is about to.

        Begins walks once they are worthwhile.
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
        """Stop all walks and drop their windows."""
        while self._walks:
            self._walks.pop().stop()

    def _begin_walks(self, first_byte: int) -> None:
        span_bytes = self._plan.span_bytes(first_byte)
        if not span_bytes or self._num_useless >= _MOST_USELESS:
            return
        walks = self._walks
        while len(walks) < self._plan.most_walks:
            # The bytes before the first walk are the scan's own part.
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
        """Follow the chain from the first likely start, and again from the byte after a broken chain."""
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
        """Return the first likely start from ``position`` on; None if none comes before the end of the walk."""
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
