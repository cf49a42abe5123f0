"""HOW ARE SHARDS MADE OF SHARDS? Modules that answer it."""
