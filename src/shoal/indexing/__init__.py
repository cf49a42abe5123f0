"""HOW IS AN INDEX MADE? Shards are found, opened, scanned once, and later compared with their index."""
