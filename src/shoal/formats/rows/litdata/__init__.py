"""LitData's chunks, of items and of tokens."""
