"""WHAT DOES A PACKING WRITE AND COMMIT? Shards and records in a destination, then one index over them."""
