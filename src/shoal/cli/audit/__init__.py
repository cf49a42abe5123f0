"""`shoal audit`."""
