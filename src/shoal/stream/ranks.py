"""Which rank this process is, of how many."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from typing import Any

from shoal.errors import UsageError
from shoal.order.partition import check_rank

__all__ = ["rank_and_world_size"]


def rank_and_world_size(
    given: tuple[int, int] | None = None, environment: Mapping[str, str] = os.environ
) -> tuple[int, int]:
    """The rank and world size given, else torchrun's ``RANK`` and ``WORLD_SIZE``, else the only rank of one."""
    if given is not None:
        rank, world_size = _whole("rank", given[0]), _whole("world_size", given[1])
    else:
        words = environment.get("RANK") or None, environment.get("WORLD_SIZE") or None
        if words in {(None, None), (None, "1")}:
            return 0, 1
        try:
            rank, world_size = (int(word or "") for word in words)
        except ValueError:
            msg = f"RANK={words[0]!r} and WORLD_SIZE={words[1]!r} in the environment must both be integers"
            hint = "torchrun sets both; .partition(rank=..., world_size=...) overrides them"
            raise UsageError(msg, hint=hint) from None
    if world_size < 1:
        msg = f"world_size must be at least 1; got {world_size}"
        raise UsageError(msg)
    check_rank(rank, world_size)
    return rank, world_size


def _whole(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        msg = f"{name} must be an integer; got {value!r} of type {type(value).__name__}"
        hint = f"{name}=int(...)" if isinstance(value, (str, float)) else ""
        raise UsageError(msg, hint=hint) from None
