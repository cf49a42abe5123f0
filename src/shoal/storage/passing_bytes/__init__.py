"""WHAT DID A SCAN JUST READ? Bytes of remote shards that a stream is about to need, in files of this machine."""
