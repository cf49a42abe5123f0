"""HOW WELL WILL THIS DATASET MIX? Predictions, also for the growing order, and warnings before a run."""
