"""WHICH SOURCE NEXT, IN OTHER LIBRARIES? How Hugging Face datasets and WebDataset mix: one epoch after another."""
