"""Datasets of the Hugging Face Hub, by name, revision and configuration."""
