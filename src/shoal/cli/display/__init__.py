"""HOW DOES A VERB SHOW IT? Previews of values, progress, and files with pages and pictures."""
