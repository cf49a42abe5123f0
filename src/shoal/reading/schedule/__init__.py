"""WHICH BYTES ARE READ WHEN? Units, their lifetimes, the memory for them, and the requests."""
