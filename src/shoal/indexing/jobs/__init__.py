"""HOW IS THE WORK ON MANY SHARDS DIVIDED? Into units; each stores its part of the result in a shared directory."""
