"""WHAT DO BYTES MEAN? From the fields of samples to text, arrays and pictures."""
