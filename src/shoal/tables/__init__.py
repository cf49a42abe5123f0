"""Tables with versions, LeRobot datasets, and datasets of the Hub: a version is resolved to files and their columns."""
