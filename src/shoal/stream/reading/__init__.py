"""HOW DO BYTES COME? What the plan wants is fetched: ahead, within a budget, through faults, and checked."""
