"""HOW ARE SHARDS SCANNED? In processes and threads, locally and remotely."""
