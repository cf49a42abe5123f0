"""ARE THESE THE BYTES THAT WERE INDEXED? Verified reads, and what is lost when they are not."""
