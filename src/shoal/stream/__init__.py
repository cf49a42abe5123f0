"""THE RUNNING STREAM. The only room with threads: it carries out what the order and the plan have decided."""
