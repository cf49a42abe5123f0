"""HOW ARE SAMPLES READ TOGETHER WITH SAMPLES OF ANOTHER DATASET? Each side by its own reads, in one memory budget."""
