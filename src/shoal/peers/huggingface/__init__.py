"""Orders of Hugging Face ``datasets``: shuffled ``IterableDataset``."""
