"""Shards compressed as a whole, by any codec."""
