"""Reporters of this room by name, for `shoal.stream.reporters`."""

from __future__ import annotations

from typing import Any

from shoal.watch.page_reporter import PageReporter
from shoal.watch.trace_reporter import TraceReporter

REPORTERS_AROUND: dict[str, Any] = {"page": PageReporter, "trace": TraceReporter}
