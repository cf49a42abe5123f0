"""WHICH SOURCE NEXT? Mixtures: the source of each position as a pure function, and the order made of several."""
