"""Batches that ranks fill with what a filter keeps: parts of a share, states of each rank, and passes of some steps."""
