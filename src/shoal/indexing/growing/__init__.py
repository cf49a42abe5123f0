"""HOW ARE SHARDS INDEXED WHILE A STREAM RUNS? In segments of a shuffled listing, one after another."""
