"""What holds for every page that shoal writes, read from its source: `faults` lists what does not."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

# Elements without an end; the rest, SVG's empty ones too, must be closed.
VOID = {"meta", "br", "img", "link", "input", "hr"}
_ADDRESS = re.compile(r"(?:https?:)?//[a-z0-9]", re.IGNORECASE)


@dataclass
class Element:
    """One element: its name, attributes, and what was open around it."""

    tag: str
    attributes: dict[str, str]
    around: tuple[str, ...]
    text: str = ""


@dataclass
class Reading(HTMLParser):
    """The elements of a page in order, and what is wrong with how they are nested."""

    elements: list[Element] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    _open: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs}, tuple(each.tag for each in self._open))
        if len(element.attributes) < len(attrs):
            self.wrong.append(f"<{tag}> has an attribute twice")
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1].tag != tag:
            self.wrong.append(f"</{tag}> closes {self._open[-1].tag if self._open else 'nothing'}")
        else:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data


def read(page: str) -> Reading:
    """The page's elements."""
    reading = Reading()
    reading.feed(page)
    reading.close()
    reading.wrong += [f"<{element.tag}> is never closed" for element in reading._open]
    return reading


def faults(page: str) -> list[str]:
    """What is wrong with a page: nesting, addresses, and what somebody who does not see it would miss."""
    reading = read(page)
    result, elements = list(reading.wrong), reading.elements
    if not page.startswith("<!DOCTYPE html>"):
        result.append("there is no doctype")
    named = [element.attributes["id"] for element in elements if "id" in element.attributes]
    result += [f"id {name!r} is given twice" for name in {name for name in named if named.count(name) > 1}]
    # Whatever is shown may hold an address; what the browser acts upon may not.
    for element in elements:
        for name, value in element.attributes.items():
            if (
                name not in {"content", "aria-label", "alt"}
                and not value.startswith("data:image/")
                and (_ADDRESS.search(value) or "url(" in value)
            ):
                result.append(f"<{element.tag} {name}> names another address: {value[:60]}")
            if name.startswith("on") or element.tag in {"script", "iframe", "link", "form", "object"}:
                result.append(f"<{element.tag} {name}> could run or load something")
        if "src" in element.attributes and not element.attributes["src"].startswith("data:"):
            result.append(f"<{element.tag}> loads {element.attributes['src'][:60]}")
    style = "".join(element.text for element in elements if element.tag == "style")
    if "url(" in style or "@import" in style:
        result.append("the style loads something")
    return result + _faults_of_access(elements, set(named))


def _faults_of_access(elements: list[Element], named: set[str]) -> list[str]:
    result = []
    levels = [int(element.tag[1]) for element in elements if re.fullmatch("h[1-6]", element.tag)]
    if levels.count(1) != 1 or levels[:1] != [1]:
        result.append(f"a page has one h1, first; these are {levels}")
    result += [f"h{now} follows h{before}" for before, now in itertools.pairwise(levels) if now > before + 1]
    for wanted in ("main", "title"):
        if sum(element.tag == wanted for element in elements) != 1:
            result.append(f"there is not one {wanted}")
    html = next(element for element in elements if element.tag == "html")
    if not html.attributes.get("lang"):
        result.append("the language is not said")
    if not any(element.attributes.get("name") == "viewport" for element in elements):
        result.append("there is no viewport, so phones zoom out")
    for place, element in enumerate(elements):
        tag, attributes = element.tag, element.attributes
        result += [
            f"<{tag}> is labelled by {name!r}, which is not there"
            for name in attributes.get("aria-labelledby", "").split()
            if name not in named
        ]
        if tag == "svg" and (attributes.get("role") != "img" or len(attributes.get("aria-label", "")) < 20):
            result.append("a drawing says nothing")
        if tag == "img" and not attributes.get("alt"):
            result.append("an image says nothing")
        if tag == "table" and elements[place + 1].tag != "caption":
            result.append("a table has no caption")
        if tag == "th" and attributes.get("scope") not in {"row", "col"}:
            result.append("a heading of a table is neither a row's nor a column's")
        if tag == "details" and elements[place + 1].tag != "summary":
            result.append("what can be opened has no name")
        if int(attributes.get("tabindex", "0")) > 0:
            result.append("the order of focus is not that of the page")
        if attributes.get("role") == "region" and not attributes.get("aria-label"):
            result.append("a region has no name")
    return result


def contrast(one: str, other: str) -> float:
    """How much two colours like ``#0068a3`` differ, as WCAG 2 has it: 4.5 is enough for text, 3 for drawings."""
    first, second = sorted((_luminance(one), _luminance(other)))
    return (second + 0.05) / (first + 0.05)


def _luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
