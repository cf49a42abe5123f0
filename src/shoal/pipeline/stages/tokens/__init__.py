"""Texts as tokens by a tokenizer, and documents of tokens rearranged so that a model learns to fill gaps."""
