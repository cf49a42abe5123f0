"""Writes docs/reference.md from docstrings and ``--help``: ``python docs/make_reference.py``.

`tests/test_reference.py` fails where the page is not what this makes.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import shoal
import shoal.pack
import shoal.pack.ray
import shoal.pack.spark
import shoal.prometheus
from shoal.cli.main import VERBS, main
from shoal.indexing.jobs.index_job import IndexJob
from shoal.live.live_dataset import LiveDataset
from shoal.live.live_source import LiveCounters
from shoal.stats.counters import Counters
from shoal.stream.iterating.iterator import Iteration
from shoal.stream.verbs.dataset_run import DatasetRun
from shoal.stream.verbs.length_verbs import LengthVerbs
from shoal.stream.verbs.stage_verbs import StageVerbs
from shoal.verify.verify_job import VerifyJob

PAGE = Path(__file__).parent / "reference.md"
PROTOCOLS = {"__iter__": "iter(ds)", "__len__": "len(ds)", "__getitem__": "ds[sample_id]"}
SECTIONS = {"Parameters", "Attributes", "Raises", "Examples", "References", "Returns"}

INTRODUCTION = """\
# Reference

Made from the docstrings by `python docs/make_reference.py`; do not edit. What the methods of a dataset promise
together is in [the table of semantics](semantics.md), what the words mean in the [glossary](glossary.md).

- [Opening](#opening): `shoal.open`
- [Datasets](#datasets): what it gives, with all verbs
- [Mixing](#mixing): `shoal.mix`, and what a mixture can say of itself
- [Live streams](#live-streams): `shoal.from_iterable`, `shoal.from_callable`, `shoal.follow`
- [Iterators](#iterators): what `iter(ds)` gives
- [Merging](#merging): states and certificates of several ranks
- [Orders](#orders): `shoal.orders`
- [Formats](#formats): `shoal.formats`
- [Measuring](#measuring): `shoal.measure`
- [Packing](#packing): `shoal.pack`
- [Jobs on shards](#jobs-on-shards): an index made on many machines, and a verification
- [Prometheus](#prometheus): `shoal.prometheus`
- [Torch](#torch): `shoal.torch`
- [JAX](#jax): `shoal.jax`
- [Hugging Face](#hugging-face): `shoal.huggingface`
- [Errors](#errors): `shoal.errors`
- [Command line](#command-line): `shoal VERB`
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION, "## Opening\n", *member("shoal.open", shoal.open)]
    parts += ["## Datasets\n", text_of(shoal.Dataset), *members(shoal.Dataset, "ds")]
    parts += [*members(StageVerbs, "ds"), *members(LengthVerbs, "ds"), *members(DatasetRun, "ds")]
    parts += ["## Mixing\n", *member("shoal.mix", shoal.mix), text_of(shoal.mixing), *mixing()]
    parts += ["## Live streams\n", *member("shoal.from_iterable", shoal.from_iterable)]
    parts += [*member("shoal.from_callable", shoal.from_callable), *member("shoal.follow", shoal.follow)]
    parts += [text_of(LiveDataset), *members(LiveDataset, "live")]
    parts += ["## Iterators\n", text_of(Iteration), *members(Iteration, "iterator")]
    parts += ["## Merging\n", *member("shoal.merge_states", shoal.merge_states)]
    parts += member("shoal.merge_certificates", shoal.merge_certificates)
    parts += ["## Orders\n", text_of(shoal.orders), *orders()]
    parts += ["## Formats\n", text_of(shoal.formats), *formats()]
    parts += ["## Measuring\n", text_of(shoal.measure), *measuring()]
    parts += ["## Packing\n", text_of(shoal.pack), *door(shoal.pack)]
    parts += [*member("shoal.pack.ray.run", shoal.pack.ray.run)]
    parts += [*member("shoal.pack.spark.run", shoal.pack.spark.run)]
    parts += ["## Jobs on shards\n", *member("shoal.plan_index", shoal.plan_index)]
    parts += [text_of(IndexJob), *members(IndexJob, "job"), *member("shoal.plan_verify", shoal.plan_verify)]
    parts += [text_of(VerifyJob), *members(VerifyJob, "job")]
    parts += ["## Prometheus\n", text_of(shoal.prometheus)]
    parts += [*member("shoal.prometheus.text", shoal.prometheus.text)]
    parts += [*member("shoal.prometheus.write", shoal.prometheus.write)]
    parts += ["## Torch\n", text_of(shoal.torch), *door(shoal.torch)]
    parts += ["## JAX\n", text_of(shoal.jax), *door(shoal.jax)]
    parts += ["## Hugging Face\n", text_of(shoal.huggingface), *door(shoal.huggingface)]
    parts += ["## Errors\n", text_of(shoal.errors), *errors()]
    parts += ["## Command line\n", *command_line()]
    return "\n".join(part.rstrip() + "\n" for part in parts)


def members(owner: type, name: str) -> Iterator[str]:
    """The public methods and properties of a class, in the order of its source."""
    for attribute, value in vars(owner).items():
        if attribute in PROTOCOLS and issubclass(shoal.Dataset, owner):
            yield f"### `{PROTOCOLS[attribute]}`\n"
            yield text_of(value)
        elif not attribute.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
            yield from member(f"{name}.{attribute}", value)


def door(module: Any) -> Iterator[str]:
    """Classes with what they can do, and functions."""
    called = {"BatchSampler": "batch_sampler", "DataIterator": "iterator", "DataLoader": "loader"}
    called["IterableDataset"] = "iterable"
    for name in module.__all__:
        value = getattr(module, name)
        yield from member(f"{module.__name__}.{name}", value)
        if inspect.isclass(value):
            yield from members(value, called.get(name, name.lower()))


def mixing() -> Iterator[str]:
    """The choices of sources, then what a mixture has beyond a dataset."""
    for name in shoal.mixing.__all__:
        if name != "MixedDataset":
            yield from member(f"shoal.mixing.{name}", getattr(shoal.mixing, name))
    yield f"### `shoal.mixing.MixedDataset`\n\n{text_of(shoal.mixing.MixedDataset)}"
    yield from members(shoal.mixing.MixedDataset, "mixed")


def member(name: str, value: Any) -> Iterator[str]:
    """One function or property: heading, signature and text."""
    yield f"### `{name}`\n"
    if not isinstance(value, property):
        yield fenced(signature(name, value))
    yield text_of(value)
    counters = {shoal.Dataset.stats: Counters, LiveDataset.stats: LiveCounters}.get(value)
    if counters is not None:
        yield f"They are {', '.join(f'`{count}`' for count in counters().as_dict())}.\n"
        yield text_of(counters).partition("\n\n")[2]


def orders() -> Iterator[str]:
    """The orders one can make, then the two protocols."""
    made = [name for name in shoal.orders.__all__ if name not in {"Order", "BoundOrder"}]
    for name in made:
        order = getattr(shoal.orders, name)
        yield f"### `shoal.orders.{name}`\n"
        yield fenced(signature(name, order).removesuffix(" -> None"))
        yield text_of(order)
    for name in ("Order", "BoundOrder"):
        protocol = getattr(shoal.orders, name)
        yield f"### `shoal.orders.{name}`\n"
        yield text_of(protocol)
        yield "\n".join(
            f"- `{attribute}`: {first_sentence(value)}"
            for attribute, value in vars(protocol).items()
            if not attribute.startswith("_") and inspect.getdoc(value)
        )


def formats() -> Iterator[str]:
    """The formats, each with what its constructor takes."""
    for name in shoal.formats.__all__:
        kind = getattr(shoal.formats, name)
        if name not in {"Buffer", "Format", "ReadBytes", "Records", "ShardScan"}:
            yield f"### `shoal.formats.{name}`\n"
            yield fenced(signature(name, kind).removesuffix(" -> None"))
            yield text_of(kind)


def measuring() -> Iterator[str]:
    """The audit, and what it and `Dataset.quality` give."""
    yield from member("shoal.measure.audit", shoal.measure.audit)
    for name in ("Audit", "Finding", "ShuffleQuality"):
        yield f"### `shoal.quality.{name}`\n"
        yield text_of(getattr(shoal.measure, name))


def errors() -> Iterator[str]:
    """What each error knows beyond its message."""
    yield "\n".join(
        f"- `{name}`: {' '.join((inspect.getdoc(getattr(shoal.errors, name)) or '').replace('``', '`').split())}"
        for name in shoal.errors.__all__
    )


def command_line() -> Iterator[str]:
    """The help of the command and of each verb."""
    yield "Exit codes: 0 done; 1 damage found; 2 the request cannot be carried out; 130 interrupted.\n"
    yield fenced(help_of())
    for verb in VERBS:
        yield f"### `shoal {verb}`\n"
        yield fenced(help_of(verb))


def help_of(*verb: str) -> str:
    """What ``--help`` prints."""
    printed = io.StringIO()
    with (
        mock.patch.dict(os.environ, COLUMNS="100", NO_COLOR="1"),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        main([*verb, "--help"])
    return printed.getvalue()


def signature(name: str, function: Any) -> str:
    """A call with its parameters; one on a line where there are too many for one."""
    found = inspect.signature(function)
    texts, kind = [], None
    for parameter in found.parameters.values():
        if parameter.name == "self":
            continue
        if kind == parameter.POSITIONAL_ONLY != parameter.kind:
            texts.append("/")
        if parameter.kind == parameter.KEYWORD_ONLY != kind:
            texts.append("*")
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        texts.append(f"{stars}{parameter.name}: {parameter.annotation}{default}")
        kind = parameter.kind
    returned = f" -> {found.return_annotation}"
    whole = f"{name}({', '.join(texts)}){returned}"
    return (
        whole if len(whole) <= 100 else "\n    ".join([f"{name}(", *(f"{text}," for text in texts)]) + f"\n){returned}"
    )


def first_sentence(value: Any) -> str:
    """The first sentence of a docstring."""
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].replace("``", "`").split())


def text_of(value: Any) -> str:
    """A docstring as Markdown."""
    lines = (inspect.getdoc(value) or "").splitlines()
    return re.sub(r"(?<!`)``(?!`)", "`", "\n".join(markdown(lines)))


def markdown(lines: list[str]) -> Iterator[str]:
    """Sections to bold words, parameters to lists, examples and drawings to code."""
    section, number = "", 0
    while number < len(lines):
        line, number = lines[number], number + 1
        if line in SECTIONS and number < len(lines) and set(lines[number]) == {"-"}:
            section, number = line, number + 1
            yield f"**{section}**"
            yield ""
        elif line == "::":
            block, number = taken(lines, number, lambda text: not text or text.startswith(" "))
            yield fenced(textwrap.dedent("\n".join(block)).strip("\n"))
        elif line.startswith(">>>"):
            block, number = taken(lines, number - 1, bool)
            yield fenced("\n".join(block), "pycon")
        elif section in {"Parameters", "Attributes", "Raises"} and line and not line.startswith(" "):
            block, number = taken(lines, number, lambda text: text.startswith(" "))
            names = ", ".join(f"`{name}`" for name in re.split(r", ", line))
            yield f"- {names}: {' '.join(text.strip() for text in block)}"
        else:
            yield line


def taken(lines: list[str], start: int, wanted: Any) -> tuple[list[str], int]:
    """The lines from ``start`` on that are wanted, and where they end."""
    end = start
    while end < len(lines) and wanted(lines[end]):
        end += 1
    return lines[start:end], end


def fenced(text: str, language: str = "text") -> str:
    """A code block."""
    return f"```{language}\n{text.rstrip()}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
