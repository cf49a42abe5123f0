"""The words that a shell may offer: verbs, options, and values of options, read from the parsers of the verbs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from shoal.formats.format_registry import FORMATS
from shoal.order.registry import ORDERS

FILES, DIRECTORIES, WORDS, ANYTHING = "files", "directories", "words", "anything"
"""Kinds of values: names of files, names of directories, listed words, and values that no shell can list."""

_KINDS: Mapping[str, str] = MappingProxyType({  # by the placeholder in the help
    "FILE": FILES,
    "SOURCE": FILES,
    "SRC": FILES,
    "FILE.NPY": FILES,
    "WHERE": FILES,
    "DST": DIRECTORIES,
    "DIRECTORY": DIRECTORIES,
})  # fmt: skip
_MOST_LETTERS = 70


@dataclass(frozen=True, slots=True)
class OfferedValue:
    """A value of an option or of a verb; ``words`` are the possible values if the kind is `WORDS`."""

    kind: str = ANYTHING
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OfferedOption:
    """An option: its names, a short help, and its value, or None if the option is a switch."""

    names: tuple[str, ...]
    summary: str
    value: OfferedValue | None


@dataclass(frozen=True, slots=True)
class OfferedVerb:
    """A verb: its name, a short help, its options, and the kind of its words without an option."""

    name: str
    summary: str
    options: tuple[OfferedOption, ...]
    value: OfferedValue


def offered_verb(name: str, parser: argparse.ArgumentParser) -> OfferedVerb:
    """Return the words of one parser."""
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]  # noqa: SLF001  # no public list
    options = tuple(
        OfferedOption(tuple(action.option_strings), summary_of(action.help), _value_of(action))
        for action in actions
        if action.option_strings
    )
    positional = [_value_of(action) for action in actions if not action.option_strings]
    value = next((one for one in positional if one is not None), OfferedValue())
    return OfferedVerb(name, summary_of(parser.description), options, value)


def summary_of(text: str | None) -> str:
    """Shorten a help text to its first clause, without characters that shells would read.

    >>> summary_of("size of a shard, such as 256MiB (default: by the size; see 'plan')")
    'size of a shard, such as 256MiB'
    """
    clause = re.split(r"[;(:]|\\.\\s", text or "", maxsplit=1)[0].replace("%%", "%")
    plain = re.sub(r"[^\w ,.%/-]", "", clause).strip()
    return plain if len(plain) <= _MOST_LETTERS else plain[:_MOST_LETTERS].rpartition(" ")[0]


def _value_of(action: argparse.Action) -> OfferedValue | None:
    if action.nargs == 0:
        return None
    if action.choices is not None:
        return OfferedValue(WORDS, tuple(map(str, action.choices)))
    placeholder = action.metavar if isinstance(action.metavar, str) else action.dest
    if placeholder == "ORDER":
        return OfferedValue(WORDS, tuple(sorted(ORDERS)))
    if {"--format", "--to"} & set(action.option_strings):
        return OfferedValue(WORDS, tuple(sorted(name for name in FORMATS if "." not in name)))
    return OfferedValue(_KINDS.get(placeholder.upper(), ANYTHING))
