"""Pieces that are too large for the window: spilled decoded, or refused."""
