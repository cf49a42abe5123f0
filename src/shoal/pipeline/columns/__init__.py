"""From chunk to batch without a sample in between: columns side by side in memory, and rows gathered from them."""
