"""`shoal trace`."""
