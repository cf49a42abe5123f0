"""Orders of other libraries, id for id: one module or folder for each."""
