"""pyarrow may be missing, or too old: then it is said who needs it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from shoal.errors import UsageError
from shoal.formats.tables.arrow_types import arrow_library


@pytest.mark.parametrize("version", ["17.0.0", "9.0", "17.0.0.dev1"])
def test_one_that_is_too_old(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", SimpleNamespace(__version__=version))
    with pytest.raises(UsageError, match=rf"^a table needs pyarrow 18 or newer, but {version} is installed"):
        arrow_library("a table")


@pytest.mark.parametrize("version", ["18.0.0", "26.0.1", "100.0.dev3", "unknown"])
def test_one_that_is_not(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(__version__=version)
    monkeypatch.setitem(sys.modules, "pyarrow", library)
    assert arrow_library("a table") is library


def test_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"^a table needs pyarrow, which is not installed"):
        arrow_library("a table")
