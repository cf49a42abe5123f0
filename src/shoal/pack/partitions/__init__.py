"""HOW DO ROWS THAT AN ENGINE HANDS OUT BECOME SHARDS? In partitions, written anywhere, and committed together."""
