"""LeRobot datasets, v2.1 and v3.0: rows of episodes in Parquet, frames in videos, and their description in ``meta``."""
