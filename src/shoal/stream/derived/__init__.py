"""Datasets made of other datasets: joined with another by a key, and windows of rows."""
