"""WHAT DID A SCAN JUST READ? Bytes of remote shards, in files of this machine, for the stream that needs them next."""
