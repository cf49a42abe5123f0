"""The index of windows of rows, derived from the index of the rows."""
