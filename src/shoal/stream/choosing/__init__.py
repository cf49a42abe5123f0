"""WHICH SAMPLES TAKE PART? Chosen by columns of the index, by weight or class, by the hash of a group, or by id."""
