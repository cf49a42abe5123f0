"""WHERE DOES A VIDEO HAVE ITS FRAMES? Packets from the index box of an MP4 file, and frames from some of the packets."""
