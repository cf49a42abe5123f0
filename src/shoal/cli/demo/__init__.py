"""`shoal demo`."""
