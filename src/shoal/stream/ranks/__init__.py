"""WHICH RANK IS THIS, AND WHAT IS ITS SHARE? Modules that answer it."""
