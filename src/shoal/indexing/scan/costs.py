"""Cost model for finding the samples of a remote shard: one request for each header, or a stream of all its bytes.

A format reads the bytes that it needs, no matter where they are. Its reads so far show the cost of either way, and the
next reads are usually alike. The seconds of a request and of a byte are assumed at first and measured during the scan.
"""

from __future__ import annotations

# Rough figures for one connection to an object store in the same region.
_ASSUMED_REQUEST_SECONDS = 0.03
_ASSUMED_BYTE_SECONDS = 1 / 60e6

# Bytes read from the start of a header: small members near it come along, at a hundredth of the cost of a request.
REACH_BYTES = 16 << 10

# A request counts as at most so many bytes, since bytes also cost money. With members of 1 MB, where a request took as
# long as 2.4 MB, a stream was a seventh faster and read 61 times the bytes.
_MOST_REQUEST_BYTES = 1 << 20
# The limit grows, in proportion, only if so many requests for each of few shards would be idle.
_IDLE_REQUESTS = 8

_SMALL_BYTES = 64 << 10  # up to this size latency dominates the time of a request, beyond it throughput
_WEIGHT = 1 / 16  # of the newest measurement
_OUTLIER = 4.0  # times the usual: longer measurements are clipped
_FADING = 15 / 16  # factor for earlier costs at each request of the format
_CLEARLY = 0.8  # the way changes if the other way costs less than this fraction


class ReadCosts:
    """Estimated costs of requests to one store and of bytes from it; shared by all scans from this store.

    Threads may report measurements at the same time; if one is lost, that does no harm.

    >>> ReadCosts(request_seconds=0.02, byte_seconds=1 / 50e6).request_bytes()
    1000000
    """

    def __init__(
        self, *, request_seconds: float = _ASSUMED_REQUEST_SECONDS, byte_seconds: float = _ASSUMED_BYTE_SECONDS
    ) -> None:
        self.request_seconds, self.byte_seconds = request_seconds, byte_seconds
        # State of the latest comparison: the shards of a dataset are alike, so the next scan starts from it.
        self.last_comparison: tuple[float, float, bool] = (0.0, 0.0, False)

    def measured(self, num_bytes: int, seconds: float) -> None:
        """Record that a request for ``num_bytes`` took ``seconds``."""
        if num_bytes <= _SMALL_BYTES:
            own = max(0.0, seconds - num_bytes * self.byte_seconds)
            self.request_seconds += _WEIGHT * (min(own, _OUTLIER * self.request_seconds) - self.request_seconds)
        else:
            # At least a tenth counts for the bytes, since the latency is not known exactly.
            byte_seconds = max(seconds - self.request_seconds, seconds / 10) / num_bytes
            self.byte_seconds += _WEIGHT * (min(byte_seconds, _OUTLIER * self.byte_seconds) - self.byte_seconds)

    def request_bytes(self, num_at_once: int = 1) -> int:
        """Return the bytes that ``num_at_once`` parallel requests read in the time of one more request."""
        most_bytes = _MOST_REQUEST_BYTES * max(1, num_at_once // _IDLE_REQUESTS)
        return min(most_bytes, int(num_at_once * self.request_seconds / max(self.byte_seconds, 1e-12)))


class CostComparison:
    """Running comparison of the two ways to read one shard; ``streams`` is True while a stream is the cheaper one.

    A stream of this shard may have ``num_at_once`` requests in flight. Headers are read one after another, since each
    points to the next, unless walks from guessed starts read ahead. Old costs fade, so different parts of a shard may
    be read in different ways. Costs are counted in bytes.
    """

    def __init__(self, costs: ReadCosts, num_bytes: int, *, num_at_once: int = 1) -> None:
        self._costs, self._num_at_once = costs, num_at_once
        self._end = self._reached = 0
        self._stream_bytes, self._headers_bytes, self.streams = costs.last_comparison
        # A shard that takes no longer as a whole than one more request is read as a whole.
        self.streams = self.streams or num_bytes <= costs.request_bytes(num_at_once)

    def record(self, first_byte: int, end_byte: int, *, headers_at_once: bool = False) -> None:
        """Record a range that the format reads, and decide again; O(1).

        With ``headers_at_once``, headers are read with as many parallel requests as a stream has.
        """
        request_bytes = self._costs.request_bytes(1 if headers_at_once else self._num_at_once)
        # Either way begins with a request, and a jump far back takes another.
        is_jump = self._reached == 0 or first_byte < self._end - REACH_BYTES
        stream = end_byte - (first_byte if is_jump else min(first_byte, self._end))
        if is_jump:
            stream = request_bytes + max(stream, REACH_BYTES)
        headers = 0
        if is_jump or end_byte > self._reached:
            self._reached = max(end_byte, first_byte + REACH_BYTES)
            headers = request_bytes + self._reached - first_byte
        self._end = end_byte
        self._stream_bytes = _FADING * self._stream_bytes + stream
        self._headers_bytes = _FADING * self._headers_bytes + headers
        both = self._stream_bytes, self._headers_bytes
        now, other = both if self.streams else both[::-1]
        if other < _CLEARLY * now:
            self.streams = not self.streams
        self._costs.last_comparison = (self._stream_bytes, self._headers_bytes, self.streams)
