"""Batches as JAX arrays."""
