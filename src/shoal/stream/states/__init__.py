"""WHERE IS A RUN, AND WHAT WAS DELIVERED? Positions of iterators, certificates, and when a growing order may go on."""
