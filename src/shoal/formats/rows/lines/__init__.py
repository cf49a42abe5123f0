"""JSON Lines, CSV, TSV and plain text: formats of lines."""
