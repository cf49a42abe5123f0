"""HOW IS ONE SHARD MADE? Its size, its inputs by the plan, its records, and the columns of its samples."""
