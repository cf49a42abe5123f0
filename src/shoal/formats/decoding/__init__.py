"""WHAT DO BYTES MEAN? Fields of samples become texts, arrays and pictures."""
