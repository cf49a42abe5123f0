"""HOW DO PEOPLE ASK? A file per verb, or a folder for a verb with several files."""
