"""HOW GOOD IS IT? Shuffle quality as numbers (pure), and the pictures of them (optional dependency)."""

from shoal.measure.auditing import Audit, audit
from shoal.measure.outlook import ShuffleQuality
from shoal.measure.verdict import Finding

__all__ = ["Audit", "Finding", "ShuffleQuality", "audit"]
