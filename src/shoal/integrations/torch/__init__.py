"""Loaders, datasets and samplers for torch."""
