"""YAML whose values know their line and column, so that errors can name them.

Only the safe loader's parser runs, and tags are refused: a file cannot run code. Plain words follow YAML 1.2: ``no``,
``on`` and ``1:30`` are texts, ``1e6`` and ``1_000`` numbers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain
from typing import Any

from shoal.errors import UsageError
from shoal.figures import exact_number, shown
from shoal.hints import did_you_mean, pip_install

_MOST_DEPTH = 64
_MOST_VALUES = 1 << 20
_NUMBER = re.compile(r"[-+]?(\d[\d_]*(\.\d*)?|\.\d+)([eE][-+]?\d+)?")
_PLAIN_TAG = "tag:yaml.org,2002:"
_TAGS = {f"{_PLAIN_TAG}{name}" for name in (
    "str", "int", "float", "bool", "null", "timestamp", "map", "seq", "merge", "value")}  # fmt: skip
_MERGE = "<<"


@dataclass(frozen=True, slots=True, eq=False)
class Marked:
    """A value of a file with its line and column (from 1); ``keys`` are the keys of a mapping with their positions.

    ``value`` is the text of a scalar as written, a list, or a mapping by the text of the key. A scalar that
    ``is_quoted`` is always a text.
    """

    path: str
    line: int
    column: int
    value: str | list[Marked] | dict[str, Marked]
    is_quoted: bool = False
    keys: Mapping[str, Marked] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """The beginning of an error message: path, line and column."""
        return f"{self.path}, line {self.line}, column {self.column}"

    def error(self, message: str, hint: str = "") -> UsageError:
        """Return an error that begins with the position."""
        return UsageError(f"{self.where}: {message}", hint=hint)

    @property
    def is_null(self) -> bool:
        """True if the value is null or empty."""
        return not self.is_quoted and self.value in ("", "~", "null", "Null", "NULL")

    def mapping(self, what: str, known: Collection[str] | None = None) -> dict[str, Marked]:
        """Return the values by key; raise `UsageError` at a key that is not ``known``."""
        if not isinstance(self.value, dict):
            raise self.error(f"{what} maps names to values; got {self._kind}")
        for name in self.value if known is not None else ():
            if known is not None and name not in known:
                hint = did_you_mean(name, known) + f"the keys are {', '.join(known)}"
                raise self.keys[name].error(f"{what} has no key {name!r}", hint)
        return self.value

    def part(self, key: str) -> Marked:
        """Return the value of a key, or this value if the key is missing: an error then has the nearest position."""
        return self.value.get(key, self) if isinstance(self.value, dict) else self

    def items(self, what: str) -> list[Marked]:
        """Return the values of a list."""
        if not isinstance(self.value, list):
            raise self.error(f"{what} must be a list; got {self._kind}")
        return self.value

    def text(self, what: str) -> str:
        """Return a text."""
        if not isinstance(self.value, str) or self.is_null:
            raise self.error(f"{what} must be a text; got {self._kind}")
        return self.value

    def texts(self, what: str) -> str | list[str]:
        """Return a text or a list of texts."""
        if isinstance(self.value, list):
            return [item.text(f"each of {what}") for item in self.value]
        return self.text(what)

    def number(self, what: str) -> Fraction:
        """Return an exact number, written as a decimal or as a fraction such as 1/3."""
        if isinstance(self.value, str) and not self.is_quoted:
            top, _, bottom = self.value.partition("/")
            if all(_NUMBER.fullmatch(text) for text in ([top, bottom] if bottom else [self.value])):
                divisor = self._exact(what, bottom) if bottom else Fraction(1)
                if divisor:
                    return self._exact(what, top) / divisor
        msg = f"{what} must be a number; got {self._kind}"
        raise self.error(msg, "a number such as 0.3, 1/3 or 1e6, without quotes")

    def _exact(self, what: str, text: str) -> Fraction:
        try:
            return exact_number(text)
        except OverflowError as error:
            raise self.error(f"{what} is too long: {error}; got {shown(text)}") from None

    def whole(self, what: str) -> int:
        """Return an integer of at least 0, perhaps written with an exponent."""
        number = self.number(what)
        if number.denominator != 1 or number < 0:
            raise self.error(f"{what} must be a whole number of at least 0; got {shown(self.value)}")
        return int(number)

    def plain(self) -> Any:
        """Return the value in plain Python: texts, numbers, booleans, None, lists and dicts."""
        if isinstance(self.value, dict):
            return {name: item.plain() for name, item in self.value.items()}
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        if self.is_null:
            return None
        if not self.is_quoted and self.value.lower() in ("true", "false"):
            return self.value.lower() == "true"
        if not self.is_quoted and _NUMBER.fullmatch(self.value):
            exact = self._exact("a number", self.value)
            return float(self.value) if set(self.value) & set(".eE") else int(exact)
        return self.value

    @property
    def _kind(self) -> str:
        if self.is_null:
            return "nothing"
        if isinstance(self.value, str):
            return f"a text, {self.value!r:.40}" if self.is_quoted else f"{self.value!r:.40}"
        return "a list" if isinstance(self.value, list) else "a mapping"


def parse_yaml(data: bytes, path: str) -> Marked:
    """Parse a file of one YAML document.

    Raises `UsageError` if it is not YAML, has a tag, a key twice, or an alias within itself; or PyYAML is missing.
    """
    try:
        import yaml  # noqa: PLC0415
    except ImportError:
        msg = f"{path} is YAML, but PyYAML is not installed"
        raise UsageError(msg, hint=f"{pip_install('pyyaml')}, or call shoal.mix() in Python") from None
    try:
        root = yaml.compose(data.decode("utf-8"), Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start} is not UTF-8") from None
    except yaml.YAMLError as error:
        raise _not_yaml(error, path) from None
    except RecursionError:
        root = None
    if root is None:
        raise UsageError(f"{path}: this file is empty, or nested too deeply")
    return _Marking(path).marked(root, ())


def _not_yaml(error: Any, path: str) -> UsageError:
    """Return an error of PyYAML with its position and a hint about common mistakes."""
    problem = getattr(error, "problem", None) or "it has a character that is not allowed"
    mark, hint = getattr(error, "problem_mark", None), ""
    if problem == "could not find expected ':'":  # PyYAML notices it only at the next line
        mark, problem, hint = error.context_mark, "this key has no ':'", "key: value"
    elif "'<block mapping start>'" in problem or problem == "mapping values are not allowed here":
        hint = "keys of one mapping begin in the same column, and a value that holds ': ' is quoted"
    elif "\\t" in problem:
        hint = "indent by spaces; YAML allows no tabs there"
    position = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
    return UsageError(f"{path}{position}: this is not YAML: {problem}", hint=hint)


class _Marking:
    """Conversion of PyYAML's nodes; a node with several aliases is converted once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._converted: dict[int, Marked] = {}
        self._num_values: dict[int, int] = {}  # with the values of aliases: a short file may repeat very many

    def marked(self, node: Any, above: tuple[int, ...]) -> Marked:
        if id(node) in self._converted:
            return self._converted[id(node)]
        position = self._path, node.start_mark.line + 1, node.start_mark.column + 1
        empty = Marked(*position, "")
        if node.tag not in _TAGS:
            raise empty.error("a tag has no meaning here", "leave out the word with the exclamation mark")
        if id(node) in above or len(above) > _MOST_DEPTH:
            msg = "an alias stands within its own value" if id(node) in above else "this is nested too deeply"
            raise empty.error(msg)
        path = (*above, id(node))
        inner: list[Any] = []
        if node.id == "scalar":
            marked = Marked(*position, node.value, is_quoted=node.style is not None)
        elif node.id == "sequence":
            inner = node.value
            marked = Marked(*position, [self.marked(item, path) for item in inner])
        else:
            inner = [*chain(*node.value)]
            marked = self._mapping(node, position, path)
        self._num_values[id(node)] = 1 + sum(self._num_values[id(item)] for item in inner)
        if self._num_values[id(node)] > _MOST_VALUES:
            raise empty.error(f"the file holds more than {_MOST_VALUES} values")
        self._converted[id(node)] = marked
        return marked

    def _mapping(self, node: Any, position: tuple[str, int, int], path: tuple[int, ...]) -> Marked:
        keys: dict[str, Marked] = {}
        values: dict[str, Marked] = {}
        merged: list[Marked] = []
        for key_node, value_node in node.value:
            key, value = self.marked(key_node, path), self.marked(value_node, path)
            if not isinstance(key.value, str):
                raise key.error("a key is a word")
            if key.value == _MERGE and not key.is_quoted:
                merged += value.value if isinstance(value.value, list) else [value]
                continue
            if key.value in values:
                msg = f"the key {key.value!r} was given on line {keys[key.value].line} already"
                raise key.error(msg, "rename one source, or remove one of the two")
            keys[key.value], values[key.value] = key, value
        for other in merged:
            for name, value in other.mapping("the value of <<").items():
                if name not in values:
                    keys[name], values[name] = other.keys[name], value
        return Marked(*position, values, keys=keys)
