"""Objects read over http and https."""
