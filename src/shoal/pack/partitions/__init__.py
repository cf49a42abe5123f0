"""HOW DO ROWS OF AN ENGINE BECOME SHARDS? In partitions, written anywhere, and committed together."""
