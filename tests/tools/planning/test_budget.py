from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from shoal.reading.schedule.memory_ledger import MemoryBudget


@given(
    sizes=st.lists(st.integers(1, 50), max_size=30),
    limit=st.integers(1, 120),
    kept=st.integers(0, 5),
)
def test_reading_ahead_keeps_its_limit_and_never_stands_still(sizes: list[int], limit: int, kept: int) -> None:
    """A consumer that uses units in turn and holds the last few; the reader asks for what fits."""
    ledger = MemoryBudget(ahead_limit_bytes=limit)
    pending, request, held = deque(sizes), deque[int](), deque[int]()
    most = most_claimed = 0
    for _ in sizes:
        while pending and ledger.has_room(pending[0]):
            request.append(pending.popleft())
            ledger.reserve(request[-1])
        if not request:  # a unit larger than the limit: the one that is needed next is always admitted
            request.append(pending.popleft())
            assert request[-1] > limit
            ledger.reserve(request[-1])
        most_claimed = max(most_claimed, sum(request) + sum(held))
        assert ledger.ahead_bytes == sum(request) <= max(limit, request[0])
        assert ledger.claimed_bytes == sum(request) + sum(held)
        assert ledger.held_bytes == sum(held)
        ledger.use(request[0])
        held.append(request.popleft())
        most = max(most, sum(held))
        if len(held) > kept:
            ledger.release(held.popleft())
        assert ledger.ahead_bytes == sum(request)
    assert not pending
    assert (ledger.peak_bytes, ledger.peak_claimed_bytes) == (most, most_claimed)
    while held:
        ledger.release(held.popleft())
    assert ledger.held_bytes == ledger.ahead_bytes == ledger.claimed_bytes == 0
