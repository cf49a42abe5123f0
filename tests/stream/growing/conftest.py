"""Short waits for ranks that a test runs one after the other, in one process."""

from collections.abc import Iterator

import pytest

from shoal.indexing.jobs import shared_indexing


@pytest.fixture(autouse=True, scope="module")
def _short_waits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_indexing, "_LEAST_WAIT_SECONDS", 0.05)
        patch.setattr(shared_indexing, "_UNKNOWN_WAIT_SECONDS", 0.05)
        patch.setattr(shared_indexing, "_JOIN_SECONDS", 0.01)
        yield
