"""WHICH BYTES ARE READ, AND WHEN? Planned, within a memory budget, checked, and through faults."""
