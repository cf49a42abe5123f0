"""Public interface to shuffle quality: audits of the ids from any loader, and predictions for a dataset."""

from __future__ import annotations

from shoal.quality.expected_quality import ShuffleQuality
from shoal.tools.auditing.auditing import Audit, audit
from shoal.tools.auditing.findings import Finding

__all__ = ["Audit", "Finding", "ShuffleQuality", "audit"]
