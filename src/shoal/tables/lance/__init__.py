"""Lance tables, whose rows the library of Lance reads."""
