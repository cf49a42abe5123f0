"""WHICH SHARDS COME FIRST? The growing order: segments of permuted shards in turn, before all shards are known."""
