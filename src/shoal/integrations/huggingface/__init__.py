"""To and from Hugging Face datasets."""
