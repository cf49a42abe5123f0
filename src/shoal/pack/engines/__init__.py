"""WHO MAKES THE SHARDS? This process, or several of this machine."""
