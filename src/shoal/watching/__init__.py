"""What does a run look like while it goes on? Its page, its numbers in other tools, its trace."""
