"""WHERE DO SAMPLES LIE? One table for all shards: cut, checked, joined, kept in a file."""
