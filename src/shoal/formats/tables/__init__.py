"""Parquet and Arrow: rows and columns through pyarrow."""
