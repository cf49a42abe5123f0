"""HOW DOES AN OBJECT APPEAR WHOLE OR NOT AT ALL? Modules that answer it."""
