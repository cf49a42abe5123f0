"""HOW DO SAMPLES BECOME BYTES? Formats are written as their readers expect, and equal samples give equal bytes."""
