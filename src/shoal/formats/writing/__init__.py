"""HOW DO SAMPLES BECOME BYTES? Each format written as its readers expect it, always the same for the same samples."""
