"""The door to shuffle quality: audits of the ids that any loader emitted, and what a dataset says of its own."""

from __future__ import annotations

from shoal.quality.auditing import Audit, audit
from shoal.quality.findings import Finding
from shoal.quality.outlook import ShuffleQuality

__all__ = ["Audit", "Finding", "ShuffleQuality", "audit"]
