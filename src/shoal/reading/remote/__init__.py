"""HOW ARE BYTES READ FROM A REMOTE STORE? By requests in a queue, by threads, into buffers."""
