"""Which sample of which stream comes at a position in MosaicML Streaming, and to which rank it goes."""
