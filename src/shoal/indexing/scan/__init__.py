"""HOW ARE SHARDS SCANNED? In processes and threads, local and remote."""
