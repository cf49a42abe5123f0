"""Conversations as tokens: messages, chat templates, and the mask of the tokens that a model learns."""
