"""WHERE IS THE STREAM? Positions, and what a state says of them."""
