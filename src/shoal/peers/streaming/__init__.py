"""Orders of MosaicML Streaming: samples of its streams by position, and the ranks that get them."""
