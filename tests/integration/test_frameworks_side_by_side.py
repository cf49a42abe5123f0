"""What a framework makes of shoal's loader is what it makes of torch's: epochs, steps, resumes, learning rates.

``python -m tests.integration.frameworks.table`` prints the same as a table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.frameworks.cells import CELLS, EXPLAINED, LAUNCHES, Launch
from tests.integration.frameworks.side_by_side import compare, write_data

ON_ONE_PAGE = ("timm", "torchtitan", "deepspeed")
GUIDES = Path(__file__).parent.parent.parent / "docs" / "guides"


def _is_drill(launch: Launch) -> bool:
    """Return True beyond one process without workers, and two ranks with workers: what CI has no time for."""
    return launch.is_killed or (launch.world_size > 1) != (launch.num_workers > 0)


@pytest.mark.parametrize(
    "launch",
    [pytest.param(launch, marks=pytest.mark.drill) if _is_drill(launch) else launch for launch in LAUNCHES],
    ids=str,
)
def test_a_run_with_shoal_is_that_with_torch(launch: Launch, python: Callable[[str], Path], tmp_path: Path) -> None:
    write_data(tmp_path)
    differing = {
        one.cell: one.unexplained for one in compare(launch, python(launch.environment), tmp_path) if one.unexplained
    }
    shown = "\n".join(f"{cell}: {text}" for cell, texts in differing.items() for text in texts)
    assert not differing, f"{len(differing)} of {len(launch.cells)} cells\n{shown}"


def test_every_cell_is_run_and_every_law_has_a_cell() -> None:
    run = {(launch.framework, cell) for launch in LAUNCHES for cell in launch.cells}
    assert run == {(framework, cell) for framework, cells in CELLS.items() for cell in cells}
    assert EXPLAINED.keys() <= run


def test_a_framework_that_does_not_import_is_skipped_and_named(
    python: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.integration.installs.environment", lambda *_, **__: Path(sys.executable))
    with pytest.raises(pytest.skip.Exception, match=r"no deepspeed here: [\s\S]*No module named 'deepspeed'"):
        python("deepspeed")


@pytest.mark.parametrize("framework", ["accelerate", "fabric", "lightning", "transformers", *ON_ONE_PAGE])
def test_a_guide_has_a_row_for_every_cell(framework: str) -> None:
    text = (GUIDES / f"training-with-{'timm' if framework in ON_ONE_PAGE else framework}.md").read_text()
    assert [words for words in CELLS[framework].values() if f"| {words} |" not in text] == []
