"""Orders of MosaicML Streaming: samples of streams by position, and the ranks of these samples."""
