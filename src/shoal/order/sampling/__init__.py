"""HOW OFTEN DOES EACH SAMPLE COME? Copies of stored samples, drawn for each epoch before its order."""
