"""HOW WELL IS IT MIXED? Shuffle quality as numbers, predicted and measured; pure, and knows orders and no bytes."""
