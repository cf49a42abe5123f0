"""Values of the forms that describe states, drawn by hypothesis: those that fit, and those that do not."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shoal.order.states.forms import (
    ByName,
    Digits,
    Either,
    Fields,
    Form,
    ListOf,
    OneOf,
    Plain,
    Row,
    Switch,
    Text,
    Whole,
)

SOME_NUMBERS = (0, 1, 2, 3, 5, 40, 1000, 2**31, 2**62, 2**63 - 1, 2**64 - 1)
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 10**30, 2**63, 2**64, 10**5000, 0.5, 1e300, float("inf"), float("nan"), "", "x", "7"),
    *("10" * 3000, "\ud800", b"1", [], [[]], [0], {}, {"x": [1]}, {1: 2}, {(): 1}, [[0, 1, 2]], [[10**30, 0, 1]]),
    *(np.arange(2), np.int64(3), np.float64(3), object(), {2}),
)


@st.composite
def fitting(draw: st.DrawFn, form: Form, depth: int = 2) -> Any:
    """A value that has a form, with small and with extreme numbers; `depth` bounds sources inside sources."""
    if isinstance(form, Whole):
        numbers = [number for number in (*SOME_NUMBERS, form.most, form.least) if form.least <= number <= form.most]
        return draw(st.sampled_from(numbers))
    if isinstance(form, Text):
        texts = st.from_regex(form.pattern, fullmatch=True) if form.pattern else st.sampled_from(["", "x", "a", "b"])
        return draw(texts)
    if isinstance(form, OneOf):
        return draw(st.sampled_from(form.values))
    if isinstance(form, Digits):
        return draw(st.sampled_from(["0", "1", "7", str(form.number.most)]))
    if isinstance(form, Plain):
        return draw(st.sampled_from([None, True, 0, 3, 2**63 - 1, 0.5, "x", [1, [2]], {"x": {"y": 1}}]))
    if isinstance(form, ListOf):
        return [draw(fitting(form.form, depth)) for _ in range(draw(st.integers(form.least, form.least + 2)))]
    if isinstance(form, Row):
        return [draw(fitting(each, depth)) for each in form.places.values()]
    if isinstance(form, ByName):
        return {draw(fitting(form.name)): draw(fitting(form.form, depth)) for _ in range(draw(st.integers(0, 2)))}
    if isinstance(form, Either):
        return draw(fitting(draw(st.sampled_from(form.forms)), depth))
    if isinstance(form, Switch):
        names = [*(form.forms() if depth else {}), *([None] if form.usual else [])]
        name = draw(st.sampled_from(names or [*form.forms()]))
        inner = form.usual if name is None else form.forms()[name]
        assert inner is not None
        return draw(fitting(inner, depth - 1)) | ({} if name is None else {form.field: name})
    assert isinstance(form, Fields)
    chosen = [name for name, each in form.fields.items() if not each.is_optional or draw(st.booleans())]
    return {name: draw(fitting(form.fields[name].form, depth)) for name in chosen}


def places_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each part of a value that may be changed, itself left out."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield (*place, name)
        yield from places_in(part, (*place, name))


def form_at(form: Form, value: Any, place: tuple[Any, ...]) -> Form | None:
    """The form of the part of a value that lies at a place; None where several forms are possible."""
    for name in place:
        if isinstance(form, Switch):
            form = form.forms().get(value.get(form.field), form.usual or OneOf((None,)))
        if isinstance(form, Fields) and name in form.fields:
            form = form.fields[name].form
        elif isinstance(form, ListOf | ByName):
            form = form.form
        elif isinstance(form, Row):
            form = list(form.places.values())[name]
        else:
            return None
        value = value[name]
    return form


def changed_at(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """A copy of a value with another part at a place."""
    copied = copy.deepcopy(value)
    inner = copied
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = new
    return copied


def changes_of(value: dict[str, Any], form: Form) -> st.SearchStrategy[tuple[str, Any]]:
    """Copies of a state with one part changed, left out, or drawn by its form; with the place, for messages."""

    def at(place: tuple[Any, ...]) -> st.SearchStrategy[tuple[str, Any]]:
        own = form_at(form, value, place)
        values = st.sampled_from(ODD_VALUES) | st.sampled_from(SOME_NUMBERS)
        values = values if own is None else values | fitting(own)
        return values.map(lambda new: (".".join(map(str, place)), changed_at(value, place, new)))

    return st.sampled_from([place for place in places_in(value) if place != ("check",)]).flatmap(at)
