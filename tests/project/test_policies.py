"""docs/policies.md names the versions that the code writes, and names that exist."""

from __future__ import annotations

import importlib.util
import re
from importlib.metadata import requires
from pathlib import Path

import numpy as np
import pytest
from tests.project.makefile import ROOT

import shoal
from shoal.index import index_file
from shoal.order.states.state_fields import CERTIFICATE, LIVE, STATE
from shoal.plugins import doors

PAGE = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")


def rows() -> dict[str, list[str]]:
    lines = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in lines}


@pytest.mark.parametrize(
    ("what", "kind"), [("state of a dataset", STATE), ("state of a live", LIVE), ("certificate", CERTIFICATE)]
)
def test_versions_of_states_are_those_of_the_code(what: str, kind: object) -> None:
    (cells,) = (cells for name, cells in rows().items() if name.startswith(what))
    assert (cells[0].strip("`"), int(cells[1])) == kind.version  # type: ignore[attr-defined]


def test_the_version_of_an_index_is_that_of_the_code() -> None:
    assert rows()["index (`shoal.index`)"][1] == str(index_file._VERSION)


def test_named_groups_of_entry_points_exist() -> None:
    named = set(re.findall(r"`(shoal\.(?:formats|orders|stores|decoders|commands|engines))`", PAGE))
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    used = set(re.findall(r'(?:Door\(\s*|_COMMANDS = )"(shoal\.\w+)"', sources)) - {"shoal.numbers"}
    assert named
    assert named <= used
    assert isinstance(doors.names("shoal.formats"), tuple)


def test_experimental_names_exist() -> None:
    for module in ("shoal.pack.ray", "shoal.pack.spark", "shoal.prometheus"):
        assert importlib.util.find_spec(module) is not None
    assert '"JpegDecoder"' in (ROOT / "src" / "shoal" / "torch.py").read_text(encoding="utf-8")


def test_the_core_needs_numpy_alone() -> None:
    assert [line for line in requires("shoal") or () if "extra ==" not in line] == ["numpy>=2.0"]
    assert int(np.__version__.split(".")[0]) >= 2


def test_no_extra_has_an_upper_bound() -> None:
    extras = [line for line in requires("shoal") or () if "extra ==" in line and 'extra == "dev"' not in line]
    assert extras
    assert [line for line in extras if re.search(r"<|==\d|~=", line.partition(";")[0])] == []


def test_every_release_has_kept_files() -> None:
    kept = {path.name for path in (ROOT / "tests" / "kept").iterdir() if path.name[0].isdigit()}
    assert shoal.__version__ in kept or not re.fullmatch(r"\d+\.\d+\.\d+", shoal.__version__)


def test_the_page_of_orders_promises_the_same() -> None:
    assert "An order never changes under the same version" in Path(ROOT, "docs", "orders.md").read_text(
        encoding="utf-8"
    )
