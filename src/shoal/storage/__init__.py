"""WHERE DO BYTES COME FROM? The only room that opens files and sockets.

It knows paths and byte ranges, and neither formats nor orders. It must not import `shoal.order`, `shoal.formats` or
anything above them.
"""
