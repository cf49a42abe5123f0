"""HOW WELL DID A LOADER MIX? Tests and findings of the ids that it emitted."""
