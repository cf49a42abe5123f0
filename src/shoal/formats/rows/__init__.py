"""Formats whose samples have bytes of their own: one after another, or in the ranges of a table of offsets."""
