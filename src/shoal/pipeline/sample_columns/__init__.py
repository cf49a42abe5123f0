"""Columns of an index from samples: the values at a path in all samples, joined and stored."""
