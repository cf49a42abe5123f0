"""Which is cheaper for finding the samples of a remote shard: a request for each header, or all its bytes.

A format asks for the bytes it needs and knows nothing of distance. What it has asked for tells what either way would
have cost so far, and what comes next is most often like it. To compare requests with bytes takes the seconds of each,
which are assumed at first and measured as the scan goes.
"""

from __future__ import annotations

__all__ = ["REACH_BYTES", "ReadCosts", "Way"]

# What an object store of the same region shows to one connection, roughly.
_ASSUMED_REQUEST_SECONDS = 0.03
_ASSUMED_BYTE_SECONDS = 1 / 60e6

# A header is read with so much of what follows it: small members near it come along, for a hundredth of a request.
REACH_BYTES = 16 << 10

# A request is never taken to be worth more bytes than this, whatever was measured: bytes also cost money. With members
# of 1 MB, of which 2.4 MB take as long as a request, a stream was a seventh faster and read 61 times the bytes.
_MOST_REQUEST_BYTES = 1 << 20
# Only shards so few that this many requests would idle beside each may cost more of them, in proportion.
_IDLE_REQUESTS = 8

_SMALL_BYTES = 64 << 10  # up to here the time of a request is that of a request, beyond it is that of its bytes
_WEIGHT = 1 / 16  # of the newest measurement
_OUTLIER = 4.0  # times what is usual: what took longer counts as this
_FADING = 15 / 16  # how much of what was asked for before counts when the next is
_CLEARLY = 0.8  # the way changes when the other one costs less than this part of it


class ReadCosts:
    """What requests to one store and bytes from it cost, as far as it is known; shared by all that scan from it.

    Threads may tell it what they measured at the same moment: then one of two measurements can be lost, and nothing
    depends on each.

    >>> ReadCosts(request_seconds=0.02, byte_seconds=1 / 50e6).request_bytes()
    1000000
    """

    __slots__ = ("byte_seconds", "last_way", "request_seconds")

    def __init__(
        self, *, request_seconds: float = _ASSUMED_REQUEST_SECONDS, byte_seconds: float = _ASSUMED_BYTE_SECONDS
    ) -> None:
        self.request_seconds = request_seconds
        self.byte_seconds = byte_seconds
        # Where the latest comparison stands: the shards of a dataset are alike, so the next scan begins with it.
        self.last_way: tuple[float, float, bool] = (0.0, 0.0, False)

    def measured(self, num_bytes: int, seconds: float) -> None:
        """A request for so many bytes took so long."""
        if num_bytes <= _SMALL_BYTES:
            own = max(0.0, seconds - num_bytes * self.byte_seconds)
            self.request_seconds += _WEIGHT * (min(own, _OUTLIER * self.request_seconds) - self.request_seconds)
        else:
            # A tenth at least is for the bytes: what the request itself took is not known so well.
            each = max(seconds - self.request_seconds, seconds / 10) / num_bytes
            self.byte_seconds += _WEIGHT * (min(each, _OUTLIER * self.byte_seconds) - self.byte_seconds)

    def request_bytes(self, num_at_once: int = 1) -> int:
        """How many bytes take as long as one more request, read by ``num_at_once`` requests side by side."""
        most_bytes = _MOST_REQUEST_BYTES * max(1, num_at_once // _IDLE_REQUESTS)
        return min(most_bytes, int(num_at_once * self.request_seconds / max(self.byte_seconds, 1e-12)))


class Way:
    """Compares the two ways for one shard as its format asks for bytes; ``streams`` says which one is cheaper now.

    ``num_at_once`` is how many requests a stream of this shard may have under way; headers can only be read one after
    another, since each says where the next one lies. What is long ago fades, so a shard whose members change in size
    is read one way here and the other way there. Costs are counted in bytes.
    """

    __slots__ = ("_costs", "_end", "_headers_bytes", "_num_at_once", "_reached", "_stream_bytes", "streams")

    def __init__(self, costs: ReadCosts, num_bytes: int, *, num_at_once: int = 1) -> None:
        self._costs = costs
        self._num_at_once = num_at_once
        self._end = self._reached = 0
        self._stream_bytes, self._headers_bytes, self.streams = costs.last_way
        # Where all of the shard takes no longer than a second request, all of it is read at once.
        self.streams = self.streams or num_bytes <= costs.request_bytes(num_at_once)

    def asked(self, first_byte: int, end_byte: int) -> None:
        """Take note of a range that the format asked for, and decide anew; O(1)."""
        request_bytes = self._costs.request_bytes(self._num_at_once)
        # Either way begins with a request, and going back far takes one.
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
        now, other = self._stream_bytes, self._headers_bytes
        if not self.streams:
            now, other = other, now
        if other < _CLEARLY * now:
            self.streams = not self.streams
        self._costs.last_way = (self._stream_bytes, self._headers_bytes, self.streams)
