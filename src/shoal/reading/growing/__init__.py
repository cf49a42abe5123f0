"""The growing order, resolved: segments in turn for the first epoch, and a window over all shards for later ones."""
