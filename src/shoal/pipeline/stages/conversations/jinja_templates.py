"""Chat templates in Jinja, rendered as `transformers` renders them, with the places of the text that a model generates.

A template runs in a sandbox, since templates come with models of strangers. The block ``{% generation %}`` marks text
that the model generates; `render` returns the places of these blocks in the rendered text.

References
----------
`transformers`, ``utils/chat_template_utils.py``, release 5.24.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

from shoal.errors import UsageError
from shoal.hints import pip_install

_MARKS_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
_OLDEST = (3, 1, 6)  # earlier releases of jinja2 have holes in their sandbox


class Rendered(NamedTuple):
    """A rendered conversation, and the ranges of characters that the model generates, in the order of the text."""

    text: str
    generated: tuple[tuple[int, int], ...]


class _Generated(str):
    """A text that a model generates. Jinja yields the same object if the text stays in its place, else a copy."""

    __slots__ = ()


_MARKED: ContextVar[list[_Generated] | None] = ContextVar("shoal_chat_rendering", default=None)  # of a thread


def marks_generation(template: str) -> bool:
    """Return True if a template marks text that a model generates.

    >>> marks_generation("{%- generation %}{{ message.content }}{% endgeneration %}"), marks_generation("generation")
    (True, False)
    """
    return _MARKS_GENERATION.search(template) is not None


@lru_cache(maxsize=16)
def compiled(template: str, day: dt.date | None) -> Any:
    """Compile a template once in a process. ``day`` is the result of ``strftime_now``; None refuses the function.

    Raises `UsageError` if the text is not a template, or jinja2 is missing or too old.
    """
    check_jinja()
    from jinja2.exceptions import TemplateSyntaxError  # noqa: PLC0415  # optional
    from jinja2.ext import loopcontrols  # noqa: PLC0415
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_extension(), loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    del environment.filters["random"], environment.globals["lipsum"]  # a resumed run would have other tokens
    environment.globals |= {
        "raise_exception": _refuse,
        "strftime_now": partial(_day_as, day),
        "dict": _Dict(),
        "namespace": _namespace(),
    }
    try:
        return environment.from_string(template)
    except TemplateSyntaxError as error:
        msg = f"the chat template has an error in line {error.lineno}: {error.message}"
        raise UsageError(msg, hint="template= takes a Jinja template, its file, or the name of a template") from None


def render(template: Any, variables: Mapping[str, Any]) -> Rendered:
    """Render a conversation. Raises errors of the template, and `UsageError` if a generated text has no known place."""
    marked: list[_Generated] = []
    blocks: list[str] = []
    ranges: list[tuple[int, int]] = []
    at, token = 0, _MARKED.set(marked)
    try:
        for block in template.generate(variables):
            start, at = at, at + len(block)
            if type(block) is _Generated:
                if block is not marked[len(ranges)]:
                    break
                ranges.append((start, at))
            blocks.append(block)
    finally:
        _MARKED.reset(token)
    if len(ranges) < len(marked):
        msg = f"the chat template changes or moves the text of a {{% generation %}} block: {marked[len(ranges)][:60]!r}"
        hint = "put {% generation %} outside of macros, filters, {% set %} and other {% generation %} blocks"
        raise UsageError(msg, hint=hint)
    return Rendered("".join(blocks), tuple(ranges))


def check_jinja() -> None:
    """Raise `UsageError` if jinja2 is missing or too old."""
    try:
        import jinja2  # noqa: PLC0415  # optional
    except ImportError:
        msg = "chat templates are rendered with the package jinja2, which is not installed"
        raise UsageError(msg, hint=pip_install("jinja2")) from None
    release = tuple(int(part) for part in re.findall(r"\d+", jinja2.__version__)[:3])
    if release < _OLDEST:
        msg = f"chat templates of strangers need jinja2 3.1.6; {jinja2.__version__} is installed, with known holes"
        raise UsageError(msg, hint=pip_install("jinja2", upgrade=True))


@cache
def _extension() -> Any:
    """Return the extension with the block ``{% generation %}...{% endgeneration %}``."""
    from jinja2 import nodes  # noqa: PLC0415  # optional
    from jinja2.ext import Extension  # noqa: PLC0415

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012  # as in Jinja

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller: Callable[[], str]) -> str:
            generated = _Generated(caller())
            marked = _MARKED.get()
            if marked is not None:
                marked.append(generated)
            return generated

    return Generation


@cache
def _namespace() -> Any:
    """Return ``namespace`` without private attributes, which lead out of the sandbox."""
    from jinja2.exceptions import SecurityError  # noqa: PLC0415  # optional
    from jinja2.utils import Namespace  # noqa: PLC0415

    def check_public(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            msg = f"a chat template may not set the private attribute {name!r} of a namespace"
            raise SecurityError(msg)

    class PublicNamespace(Namespace):
        def __init__(*args: Any, **kwargs: Any) -> None:  # as in Namespace, so that a template may set "self"
            self, *rest = args
            attributes = dict(*rest, **kwargs)
            for name in attributes:
                check_public(name)
            Namespace.__init__(self, attributes)

        def __setitem__(self, name: str, value: Any) -> None:
            check_public(name)
            super().__setitem__(name, value)

    return PublicNamespace


class _Dict:
    """``dict`` without the attributes of the class, which lead out of the sandbox."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """Return a dict with these keys."""
        return dict.fromkeys(*args)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002  # templates pass it by place
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """Return JSON without the escapes of Jinja's own filter, which are for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> str:
    """Raise the error that a template raises for a conversation."""
    from jinja2.exceptions import TemplateError  # noqa: PLC0415  # optional

    raise TemplateError(message)


def _day_as(day: dt.date | None, form: str) -> str:
    """Return the fixed date for ``strftime_now``: the date of the run would change the tokens from day to day."""
    if day is None:
        msg = f"the chat template writes the date of the day (strftime_now({form!r})), so tokens change from day to day"
        hint = "chat_tokens(date='2026-07-31') sets a date for the run and every resume"
        raise UsageError(msg, hint=hint)
    return day.strftime(form)
