"""The stages between the bytes of a sample and its batch: small functions of one sample."""
