"""`Dataset.windows`: from a dataset of rows to a dataset of windows."""
