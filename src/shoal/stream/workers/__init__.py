"""HOW DO WORKERS MAKE BATCHES? In processes and threads, ahead of their use."""
