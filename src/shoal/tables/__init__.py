"""Tables of Delta Lake, Iceberg and Hudi: a version of a table is resolved to Parquet files and their columns."""
