"""WHAT DO OTHER FILES SAY OF SHARDS? Manifests, indexes of other tools, splits."""
