"""WHICH BYTES OF A VIDEO ARE READ FOR A FRAME? Tables of packets, bytes of groups of pictures, and frames of both."""
