"""HOW ARE TWO DATASETS JOINED BY KEY? Keys, their alignment, and the fields of both sides."""
