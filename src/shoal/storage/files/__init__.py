"""Files of this machine: read by position, listed, mapped."""
