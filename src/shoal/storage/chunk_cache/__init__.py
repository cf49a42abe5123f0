"""WHAT DOES A MACHINE KEEP? Chunks on its disk, shared by all its processes, within one budget of bytes."""
