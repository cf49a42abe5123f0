"""From samples to columns of their index: values found by path in all samples, joined and stored."""
