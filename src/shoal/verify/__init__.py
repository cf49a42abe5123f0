"""IS WHAT LIES THERE SOUND? Shards checked against their index, reported, repaired."""
