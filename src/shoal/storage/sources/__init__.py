"""WHICH OBJECTS DOES A SOURCE NAME? Paths, URLs, globs, braces, lists."""
