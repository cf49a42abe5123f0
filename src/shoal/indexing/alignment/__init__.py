"""WHICH SAMPLE OF ANOTHER DATASET HAS THE SAME KEY? Keys are matched out of core, and the answer is kept in a file."""
