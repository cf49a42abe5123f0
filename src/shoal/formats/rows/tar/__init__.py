"""Tar shards, as WebDataset reads and writes them."""
