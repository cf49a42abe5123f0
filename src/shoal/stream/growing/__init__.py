"""HOW DOES A RUN BEGIN BEFORE ITS SHARDS ARE INDEXED? Its states, and how well its first epoch mixes."""
