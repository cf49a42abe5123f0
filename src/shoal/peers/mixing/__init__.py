"""WHICH SOURCE NEXT, IN OTHER LIBRARIES? How Hugging Face datasets and WebDataset mix, epoch by epoch."""
