"""Orders of torch's samplers over a list."""
