"""Writes the tables of docs/states.md from the forms by which states are checked: ``python docs/make_states.py``.

`tests/test_states_page.py` fails where the page is not what this makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from shoal.order.states.forms import ByName, Either, Fields, Form, ListOf, Switch
from shoal.order.states.state_fields import KINDS, LIVE, LIVE_SOURCES

PAGE = Path(__file__).parent / "states.md"
BEGIN, END = "<!-- tables -->\n", "<!-- end of tables -->\n"


def page() -> str:
    """The page with its tables made anew."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + "\n" + "\n".join(tables()) + END + rest.partition(END)[2]


def tables() -> Iterator[str]:
    """A table for each kind of state, and one for each part that has fields of its own."""
    parts: dict[str, Fields] = {}
    for kind in KINDS:
        yield f"### The {kind.title}\n\nFrom `{kind.call}`; {kind.taken_by}.\n"
        yield table(kind.fields)
        for each in kind.fields.fields.values():
            collect(each.form, parts)
    collect(LIVE_SOURCES, parts)
    for title, fields in parts.items():
        yield f"### {title[:1].upper()}{title[1:]}\n"
        yield table(fields)


def table(fields: Fields) -> str:
    """The fields in a table."""
    lines = ["| field | value | meaning |", "| --- | --- | --- |"]
    for name, each in fields.fields.items():
        words = each.form.words
        for power in (63, 64):
            words = words.replace(str(2**power - 1), f"2^{power} - 1")
        lines.append(f"| `{name}`{', optional' if each.is_optional else ''} | {words} | {each.meaning} |")
    return "\n".join(lines) + "\n"


def collect(form: Form, parts: dict[str, Fields]) -> None:
    """Collect the titled dicts in a form, each once."""
    if isinstance(form, Fields):
        if form.title in parts or form in [kind.fields for kind in (*KINDS, LIVE)]:
            return
        if form.title:
            parts[form.title] = form
        for each in form.fields.values():
            collect(each.form, parts)
    elif isinstance(form, Switch):
        for inner in (*form.forms().values(), *([form.usual] if form.usual else [])):
            collect(inner, parts)
    elif isinstance(form, Either):
        for inner in form.forms:
            collect(inner, parts)
    elif isinstance(form, ListOf | ByName):
        collect(form.form, parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
