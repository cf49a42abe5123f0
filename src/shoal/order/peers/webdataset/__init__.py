"""Orders of WebDataset."""
