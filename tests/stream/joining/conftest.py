"""The data of all tests of joins."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.stream.joining.joined_data import ORDERS, write_left, write_right


@pytest.fixture(autouse=True)
def _own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``left``, ``right-ORDER`` in tars, and ``equal`` and ``shuffled`` in the format of their suffix."""
    home = tmp_path_factory.mktemp("sides")
    write_left(home / "left")
    for order in ORDERS:
        write_right(home / f"right-{order}", order)
    for name in ("jsonl", "mds", "parquet"):
        for order in ("equal", "shuffled"):
            write_right(home / f"right-{order}-{name}", order, format=name)
    return home
