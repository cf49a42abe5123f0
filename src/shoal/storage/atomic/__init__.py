"""HOW DO OBJECTS APPEAR WHOLE OR NOT AT ALL? Written aside, then renamed or uploaded at once."""
