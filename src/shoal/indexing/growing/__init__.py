"""Indexing of shards while others are trained on: segments of a shuffled listing, one after the other."""
