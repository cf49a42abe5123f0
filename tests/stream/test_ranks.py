from __future__ import annotations

import pytest

from shoal.errors import UsageError
from shoal.stream.ranks import rank_and_world_size


def test_what_is_given_wins_over_the_environment() -> None:
    assert rank_and_world_size(None, {}) == (0, 1)
    assert rank_and_world_size(None, {"RANK": "2", "WORLD_SIZE": "8", "LOCAL_RANK": "0"}) == (2, 8)
    assert rank_and_world_size((1, 3), {"RANK": "2", "WORLD_SIZE": "8"}) == (1, 3)
    assert rank_and_world_size((0, 1), {"RANK": "nonsense"}) == (0, 1)
    assert rank_and_world_size(None, {"RANK": "", "WORLD_SIZE": ""}) == (0, 1)
    assert rank_and_world_size(None, {"WORLD_SIZE": "1"}) == (0, 1)
    with pytest.raises(UsageError, match="rank must be an integer; got '0'"):
        rank_and_world_size(("0", "2"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "1"}, "RANK='1' and WORLD_SIZE=None .* must both be integers"),
        ({"WORLD_SIZE": "4"}, "RANK=None and WORLD_SIZE='4'"),
        ({"RANK": "", "WORLD_SIZE": "4"}, "RANK=None and WORLD_SIZE='4'"),
        ({"RANK": "a", "WORLD_SIZE": "4"}, "RANK='a'"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "0 to world_size - 1 = 3; got rank=4"),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, "got rank=-1"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "world_size must be at least 1; got 0"),
    ],
)
def test_what_makes_no_rank_is_an_error(environment: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rank_and_world_size(None, environment)
