"""HOW DOES A VERB LEARN WHAT TO DO? Options that several verbs share."""
