"""What an order of the samples costs a model: many small models trained side by side, and what predicts their losses."""
