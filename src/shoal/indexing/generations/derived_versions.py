"""Other versions of samples made of rows: the rows are recovered or looked at again, and samples are made anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial

from shoal.indexing.generations.subset_of_shards import past_of
from shoal.indexing.opened_dataset import Candidate, Derivation, Known, Opened


@dataclass(frozen=True)
class DerivedVersions:
    """The `Past` and the `Latest` of samples that are made of rows, such as windows; ``name`` names their source."""

    name: str = ""

    def candidates(self, opened: Opened, known: Known) -> Iterator[Candidate]:
        """Yield the samples of each candidate of the rows; nothing if the recipe cannot be repeated."""
        derivation = _derivation_of(opened)
        if not derivation.recipe.can_repeat:
            return
        for rows in past_of(derivation.rows).candidates(derivation.rows, known):
            opened_rows = cache(rows.opened)
            fingerprint = partial(_fingerprint, derivation, opened_rows)
            yield Candidate(rows.words, fingerprint, partial(_made_again, opened, opened_rows))

    def tried(self, opened: Opened, known: Known) -> str:
        """Describe the candidates."""
        derivation = _derivation_of(opened)
        if not derivation.recipe.can_repeat:
            return f"nothing, as {derivation.recipe.words} cannot be made of other rows"
        return f"{derivation.recipe.words} of {past_of(derivation.rows).tried(derivation.rows, known)}"

    def look_again(self, opened: Opened) -> Opened:
        """Return the samples of the rows that the source holds now; ``opened`` itself if nothing has changed.

        Raises `UsageError`: the recipe cannot be repeated on rows that have grown.
        """
        rows = _derivation_of(opened).rows
        return opened if rows.latest is None else with_rows(opened, rows.latest.look_again(rows))


def with_rows(opened: Opened, rows: Opened) -> Opened:
    """Return the samples of other rows, made as before; the same samples if only the source of the rows is another."""
    derivation = _derivation_of(opened)
    if rows is derivation.rows:
        return opened
    if rows.index is derivation.rows.index:
        return replace(opened, derivation=replace(derivation, rows=rows))
    return replace(derivation.recipe.made_of(rows), cache=opened.cache)


def _derivation_of(opened: Opened) -> Derivation:
    if opened.derivation is None:
        raise AssertionError("these samples are not made of rows")
    return opened.derivation


def _fingerprint(derivation: Derivation, opened_rows: Callable[[], Opened]) -> str:
    return derivation.recipe.fingerprint(opened_rows())


def _made_again(opened: Opened, opened_rows: Callable[[], Opened]) -> Opened:
    return with_rows(opened, opened_rows())
