"""HOW ARE SHARDS MADE? Samples in, shards and their index out."""
