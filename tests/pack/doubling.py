"""A function of a user in a module of its own, which other processes import."""

from __future__ import annotations

from typing import Any


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "number": 2 * sample["number"]}
