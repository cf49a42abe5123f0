"""Windows of rows: which rows a sample of several consecutive rows has, and how these rows become one sample."""
