"""`shoal --version`: the build of shoal, and the libraries beside it."""
