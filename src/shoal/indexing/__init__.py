"""HOW IS AN INDEX MADE? Shards are found, opened, scanned once, and checked against what was indexed."""
