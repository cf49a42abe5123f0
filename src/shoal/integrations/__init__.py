"""WHO DRINKS? The only room that knows frameworks; each is imported by the modules that bear its name."""
