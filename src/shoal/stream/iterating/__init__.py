"""WHAT DOES THIS RANK GET NOW? One run through the rest of an epoch."""
