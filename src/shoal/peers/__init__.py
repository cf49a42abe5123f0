"""Orders of other libraries, id for id: a module or folder per library."""
