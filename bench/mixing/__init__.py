"""Many small models trained side by side, each in its own order of the samples, and predictors of their losses."""
