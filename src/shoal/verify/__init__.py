"""ARE THE STORED DATA SOUND? Shards checked against their index, reported, repaired."""
