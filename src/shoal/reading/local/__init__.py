"""Reads of files of this machine."""
