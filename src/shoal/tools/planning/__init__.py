"""WHAT WILL A CLUSTER NEED? Simulated reads, memory and traffic of many ranks."""
