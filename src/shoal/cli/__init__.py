"""HOW DO PEOPLE ASK? A file per verb, or a folder where a verb needs several."""
