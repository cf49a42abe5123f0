"""WHAT DOES THIS MACHINE REMEMBER OF DATASETS? Indexes that it made, within bounds."""
