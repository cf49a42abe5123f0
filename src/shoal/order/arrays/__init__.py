"""Numpy idioms of orders: permutations, ranges of integers, segments, sorting by small keys."""
