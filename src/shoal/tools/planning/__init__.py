"""WHAT WILL A CLUSTER NEED? Reads, memory and traffic of many ranks, simulated; no byte is read."""
