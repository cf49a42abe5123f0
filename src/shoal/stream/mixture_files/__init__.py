"""HOW IS A MIXTURE WRITTEN DOWN? Files that name sources and shares: our own, Energon's and Streaming's."""
