"""WHAT WAS DELIVERED? Sums over samples, and the certificate that they make."""
