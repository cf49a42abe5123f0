"""IN WHICH ORDER IS A MIXTURE READ? Several datasets with their orders, and the schedule that mixes them."""
