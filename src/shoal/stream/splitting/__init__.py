"""WHICH SPLIT DOES A SAMPLE BELONG TO? By a hash of its group, which depends on nothing else."""
