"""WHERE DOES A VIDEO HAVE ITS FRAMES? The index box of an MP4 file lists packets, and some packets give frames."""
