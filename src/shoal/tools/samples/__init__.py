"""HOW IS A SAMPLE SHOWN? Lines for a terminal, thumbnails, and contact sheets."""
