"""WHAT CAN A USER CALL ON A DATASET? Its methods by topic, and the arguments that they check."""
