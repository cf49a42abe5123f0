"""Streams of sources without an index or an end: iterables, functions, growing directories."""
