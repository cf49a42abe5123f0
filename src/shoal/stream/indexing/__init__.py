"""WHERE DO SAMPLES LIE? Shards are found, scanned once, and checked against what was indexed."""
