"""Public interface to shuffle quality: audits of the ids emitted by any loader, and the quality a dataset predicts."""

from __future__ import annotations

from shoal.quality.auditing import Audit, audit
from shoal.quality.findings import Finding
from shoal.quality.prediction import ShuffleQuality

__all__ = ["Audit", "Finding", "ShuffleQuality", "audit"]
