"""The fixtures of the running stream."""

import gc
from collections.abc import Iterator

import pytest
from tests.stream.conftest import _own_environment, large, lines, readers, tars

__all__ = ["_no_page_stays", "_own_environment", "large", "lines", "readers", "tars"]


@pytest.fixture(autouse=True)
def _no_page_stays() -> Iterator[None]:
    """A page lives as long as its dataset, which a failed assertion or a cycle keeps."""
    yield
    gc.collect()
