"""Reporters of this room by name, for `shoal.stream.iterating.reporters`."""

from __future__ import annotations

from typing import Any

from shoal.watching.page_reporter import PageReporter
from shoal.watching.trace_reporter import TraceReporter

REPORTERS_AROUND: dict[str, Any] = {"page": PageReporter, "trace": TraceReporter}
