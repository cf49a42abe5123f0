"""HOW ARE SHARDS MADE OF SHARDS? Repacked, converted, mixed once."""
