"""HOW IS A DATASET READ WHILE IT IS INDEXED? The first epoch in segments, later epochs in a window over all shards."""
