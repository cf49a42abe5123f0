"""WHAT DOES A SHARD HOLD? Bytes to samples and back, one format per file, pure over buffers.

This room never opens a file or a socket and knows no order: whoever calls it brings the bytes. It must not import
`shoal.order`, `shoal.storage` or anything above them.
"""
