"""`make mutate` finds each place that it breaks, and what it writes there is Python."""

from __future__ import annotations

import ast

import pytest

from tests.mutations import HOME, MUTATIONS, Mutation


def test_there_are_enough_with_names_of_their_own() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 20


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_each_old_text_occurs_once(mutation: Mutation) -> None:
    before = (HOME / "src" / "shoal" / mutation.file).read_text(encoding="utf-8")
    after = mutation.mutated()  # which raises unless it does
    assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(before))
    assert mutation.tests
    assert all((HOME / test).is_file() for test in mutation.tests)


@pytest.mark.parametrize("old", ["no such text", "import"])
def test_another_text_is_refused(old: str) -> None:
    with pytest.raises(ValueError, match=f"has [0-9]+ times '{old}'"):
        MUTATIONS[0]._replace(old=old).mutated()
