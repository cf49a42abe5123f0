"""Tables of Delta Lake, Iceberg and Hudi, and LeRobot datasets: a version is resolved to Parquet files and columns."""
