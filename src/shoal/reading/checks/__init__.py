"""ARE THESE THE INDEXED BYTES? Verified reads, and the samples that are lost to damage."""
