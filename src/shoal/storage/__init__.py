"""WHERE DO BYTES COME FROM? The only room that opens files and sockets.

It knows paths and byte ranges, but no formats and no orders: it must not import `shoal.order`, `shoal.formats` or rooms
above them.
"""
