"""HOW ARE SAMPLES BATCHED BY A COLUMN? Batches from one group, of P classes with K samples each, and equal costs."""
