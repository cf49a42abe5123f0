"""WHERE IS A RUN, AND WHAT HAS IT DELIVERED? Certificates, and states of the growing order."""
