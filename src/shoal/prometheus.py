"""Counters of a stream in Prometheus format: ``shoal.prometheus.text(ds.stats())``."""

from shoal.stats.prometheus_text import CONTENT_TYPE, text, write

__all__ = ["CONTENT_TYPE", "text", "write"]
