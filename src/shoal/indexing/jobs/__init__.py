"""HOW IS THE WORK ON MANY SHARDS DIVIDED? Into units whose parts of the result wait in a place that machines share."""
