"""Batches that ranks fill with kept samples: parts of a share, states of each rank, and passes of some steps."""
