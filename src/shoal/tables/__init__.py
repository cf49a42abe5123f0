"""Tables whose versions are resolved to files: Delta Lake, Iceberg, Hudi, Lance, and datasets of the Hub."""
