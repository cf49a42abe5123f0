"""HOW IS A VERSION OF A TABLE READ? Each kind of table resolves a version to files, and rows that it deleted."""
