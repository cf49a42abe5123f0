"""WHERE DO SAMPLES LIE? One table for all shards: made, checked, joined, kept in a file."""
