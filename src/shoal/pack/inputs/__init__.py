"""WHAT IS PACKED? Files, tables of paths, saved datasets."""
