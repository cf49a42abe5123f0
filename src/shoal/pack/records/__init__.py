"""Records of an unfinished packing, and how its parts of the index become one file."""
