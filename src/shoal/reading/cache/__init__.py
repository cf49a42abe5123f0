"""WHAT IS KEPT ON THE DISK OF THIS MACHINE? Ranges of shards, and chunks too large for the window, decoded."""
