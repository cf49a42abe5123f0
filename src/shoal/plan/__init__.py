"""WHICH BYTES, WHEN, IN HOW MUCH MEMORY? Pure: plans reads and budgets, executes nothing.

It may import `shoal.order`, `shoal.shards` and `shoal.storage`'s protocols; nothing here opens a file or a thread.
"""
