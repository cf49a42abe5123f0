"""The page about states has the fields by which states are checked."""

from __future__ import annotations

import runpy
from pathlib import Path

from shoal.order.states.state_fields import KINDS

DOCS = Path(__file__).parent.parent / "docs"


def test_the_tables_of_states_are_up_to_date() -> None:
    made = runpy.run_path(str(DOCS / "make_states.py"))["page"]()
    assert (DOCS / "states.md").read_text(encoding="utf-8") == made, "python docs/make_states.py"
    for kind in KINDS:
        assert all(f"| `{name}`" in made for name in kind.fields.fields)
