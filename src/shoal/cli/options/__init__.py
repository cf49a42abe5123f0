"""HOW ARE VERBS TOLD WHAT TO DO? Options that several verbs share."""
