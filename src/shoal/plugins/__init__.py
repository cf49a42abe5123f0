"""WHICH NAMES DO OTHER PACKAGES ADD? Formats, orders, stores, decoders, verbs and engines, by entry point."""
