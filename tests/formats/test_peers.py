"""Small shards that other packages wrote, and what their own readers gave for them; `make compat` writes them anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.compat.peers.environments import PEERS, title_of
from tests.compat.peers.run import TABLE, WRITTEN, differences

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


def test_the_documentation_has_a_row_for_each_peer_with_what_is_tried() -> None:
    text = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    begin = lines.index(TABLE[0])
    rows = [line.strip("| ").split(" | ") for line in lines[begin + 2 : begin + 2 + len(PEERS)]]
    assert [row[0] for row in rows] == [title_of(name) for name in PEERS]
    for name, (_, theirs, ours) in zip(PEERS, rows, strict=True):
        assert ours.startswith(f"{len(WRITTEN[name])} of {len(WRITTEN[name])}: ") if name in WRITTEN else ours == "-"
        num_equal, num_tried = theirs.partition(":")[0].split(" of ")
        assert num_equal == num_tried
        kinds = theirs.partition(": ")[2].split(", ")
        assert int(num_tried) == sum(int(kind.partition(" x ")[0]) if " x " in kind else 1 for kind in kinds)
