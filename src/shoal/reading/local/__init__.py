"""HOW ARE LOCAL FILES READ? By the consumer, after advice to the system."""
