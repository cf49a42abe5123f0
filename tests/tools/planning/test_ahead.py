from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.reading.schedule.memory_ledger import ahead_limit_bytes, divide

SIZES = st.integers(1, 1 << 40)


@given(window=SIZES, largest=SIZES, is_remote=st.booleans())
def test_what_is_read_ahead_holds_two_units_and_stays_small_beside_the_window(
    window: int, largest: int, is_remote: bool
) -> None:
    limit = ahead_limit_bytes(window, largest, is_remote=is_remote)
    assert limit >= 2 * largest
    assert limit <= max(window // 2, 2 * largest, 8 << 20 if is_remote else 1 << 20)
    assert limit >= 8 << 20 or not is_remote
    assert limit <= max(128 << 20, 2 * largest)


@given(limit=SIZES, ahead=SIZES, largest=SIZES)
def test_a_limit_is_divided_without_remainder_or_refused(limit: int, ahead: int, largest: int) -> None:
    ahead = max(ahead, 2 * largest)
    if limit < 3 * largest:
        with pytest.raises(UsageError, match=f"up to {largest} bytes"):
            divide(limit, ahead, largest)
        return
    ahead_bytes, keep_bytes = divide(limit, ahead, largest)
    assert ahead_bytes + keep_bytes == limit
    assert 2 * largest <= ahead_bytes <= ahead
    assert keep_bytes >= largest


def test_the_refusal_says_what_would_do() -> None:
    with pytest.raises(UsageError, match=r"memory_limit=300 or more, or a smaller chunk="):
        divide(299, 500, 100)
    assert divide(300, 500, 100) == (200, 100)
