"""Tables, whose own log says which files belong to a version, and which rows."""
