"""WHICH SAMPLES SHARE A BATCH? Batches from one group, or of P classes with K samples each, from a column alone."""
