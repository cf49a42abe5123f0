"""A MIXTURE, RESOLVED: several datasets with their orders, and the schedule that mixes them."""
