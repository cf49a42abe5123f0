"""HOW DO PROCESSES AND THREADS BEGIN AND END? Forks, interpreters, parents, interrupts."""
