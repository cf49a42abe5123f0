"""The verb `watch`."""
