"""WHAT WAS DELIVERED? Sums that prove it."""
