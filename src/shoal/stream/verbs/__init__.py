"""WHAT CAN A USER CALL ON A DATASET? Methods by topic, and the checks of their arguments."""
