"""WHAT DO OTHER PACKAGES BRING? Formats, orders, stores, decoders, verbs and engines, by the names of entry points."""
