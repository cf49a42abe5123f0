"""WHAT BECOMES OF SAMPLES? Stages, decoding, collation, output formats."""
