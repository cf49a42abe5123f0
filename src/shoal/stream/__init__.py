"""WHAT DOES THIS RANK GET NOW? The dataset that users hold, and the iterators over it."""
