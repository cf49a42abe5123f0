"""WHICH SAMPLE COMES NEXT? Orders as pure, seekable functions over plain arrays.

numpy only: no bytes, no files, no threads. This room must not import any other room.
"""
