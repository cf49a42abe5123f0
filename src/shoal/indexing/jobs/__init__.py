"""HOW IS THE WORK ON MANY SHARDS DIVIDED? Into units, whose parts of the result wait in a directory of all machines."""
