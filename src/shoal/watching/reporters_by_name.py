"""Reporters of this room by name, for `shoal.stream.iterating.reporters`."""

from __future__ import annotations

from typing import Any

REPORTERS_AROUND: dict[str, Any] = {"page": None, "trace": None}
