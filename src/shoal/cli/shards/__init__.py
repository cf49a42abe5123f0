"""HOW ARE SHARDS MADE, INDEXED AND CHECKED? Verbs that write or verify shards and indexes."""
