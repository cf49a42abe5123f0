"""What a stream counts, for Prometheus: ``shoal.prometheus.text(ds.stats())``."""

from shoal.stats.prometheus_text import CONTENT_TYPE, text, write

__all__ = ["CONTENT_TYPE", "text", "write"]
