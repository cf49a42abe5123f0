"""HOW WELL DID A LOADER MIX? Tests and findings of emitted ids."""
