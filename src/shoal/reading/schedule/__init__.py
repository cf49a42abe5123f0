"""WHICH BYTES, WHEN? The plan of reads: units, lifetimes, memory, concurrency."""
