"""WHICH SOURCE NEXT? Mixtures: the source of each position as a pure function, and the order of all sources."""
