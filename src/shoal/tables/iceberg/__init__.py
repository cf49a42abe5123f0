"""Iceberg: the library pyiceberg reads metadata and plans scans; data files are read in place."""
