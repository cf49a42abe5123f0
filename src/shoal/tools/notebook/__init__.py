"""HOW DOES A NOTEBOOK SHOW AN OBJECT? Self-contained HTML of datasets, orders, qualities and counters."""
