"""`shoal index`."""
