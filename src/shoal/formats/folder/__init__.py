"""Folders of single files."""
