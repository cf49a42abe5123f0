"""WHAT IS IN A STATE? The fields of every state and certificate, described once: checks, docs and fuzzing read it."""
