"""HOW ARE DOCUMENTS BATCHED BY THEIR LENGTHS? Sequences of a fixed length, and padded batches of similar lengths."""
