"""HOW DOES A VERB SHOW A RESULT? Previews of values, progress, and files with pages and pictures."""
