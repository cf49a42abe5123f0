"""Formats whose samples have bytes of their own: one after the other, or in the ranges of a table of offsets."""
