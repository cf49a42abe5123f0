"""The fixtures of the running stream."""

from tests.stream.conftest import _own_environment, large, lines, readers, tars

__all__ = ["_own_environment", "large", "lines", "readers", "tars"]
