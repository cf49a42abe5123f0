"""`shoal plan`."""
