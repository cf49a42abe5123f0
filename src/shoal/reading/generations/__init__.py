"""IN WHICH EPOCH IS WHICH DATASET READ? The running dataset, and the dataset that follows it."""
