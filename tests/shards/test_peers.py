"""Small shards that other packages wrote, and what their own readers gave for them; `make compat` writes them anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.compat.peers.run import differences

DATA = Path(__file__).parent / "data" / "peers"

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


@pytest.mark.parametrize("peer", sorted(path.name for path in DATA.iterdir()))
def test_values_types_and_order_are_those_of_the_package_that_wrote_them(peer: str) -> None:
    for library in {
        "webdataset": ("PIL", "msgpack"),
        "tfrecord": ("google_crc32c",),
        "litdata": ("pyarrow", "PIL", "zstandard"),
    }.get(peer, ("pyarrow",)):
        pytest.importorskip(library)
    found = differences(peer, DATA / peer)
    assert found
    assert {about: what for about, what in found.items() if what} == {}
