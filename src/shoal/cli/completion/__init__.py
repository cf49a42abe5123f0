"""`shoal --print-completion SHELL`: the words that a shell offers at the key Tab."""
