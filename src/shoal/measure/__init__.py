"""HOW GOOD IS IT? Shuffle quality as numbers (pure), and the pictures of them (optional dependency)."""
