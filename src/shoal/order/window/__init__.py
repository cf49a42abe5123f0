"""WHICH CHUNKS MIX AT ONE TIME? The default order: a window of chunks."""
