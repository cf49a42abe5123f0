"""WHICH DOCUMENTS SHARE A SEQUENCE? Documents packed into sequences of a fixed length, from their lengths alone."""
