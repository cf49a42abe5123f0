"""WHAT DO OTHER FILES SAY ABOUT SHARDS? Manifests, indexes of other tools, splits."""
