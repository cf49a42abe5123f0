"""HOW IS THE RUN GOING? Counters, throughput, progress lines, metrics."""
