"""Mixture files of shoal's own format; docs/mixture-files.md describes it."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from shoal.formats.metadata.marked_yaml import Marked
from shoal.hints import did_you_mean
from shoal.order.mixture.source_choice import PerBatch, PerRank
from shoal.reading.mixture.mix_request import ENDS
from shoal.stream.mixing.mixture_entries import SHARES, ChangeEntry, MixtureEntry, SourceEntry, beside

_MIXTURE_KEYS = (
    *("sources", "seed", "choice", "unit", "length", "ends"),
    *("epoch_size", "max_repeats", "missing", "shuffle", "changes"),
)
_OPENING_KEYS = ("split", "index", "format", "storage_options", "index_columns")
# Options that name an account, a key or a server. Others can name files of this machine, which a store sends to a
# server (federated_token_file), or a directory, where a filesystem of fsspec writes files (cache_storage): a mixture
# file may come from a stranger.
_STORAGE_OPTIONS = (
    *("access_key_id", "account_key", "account_name", "anon", "anonymous", "connect_timeout_seconds"),
    *("deadline_seconds", "endpoint", "endpoint_url", "headers", "key", "max_open_files", "profile", "region"),
    *("requester_pays", "sas_key", "secret", "secret_access_key", "session_token", "timeout_seconds", "token"),
    "virtual_hosted_style_request",
)
_SOURCE_KEYS = ("path", *SHARES, *_OPENING_KEYS, "select", "columns", "shuffle", "max_repeats")
_SHUFFLE_KEYS = ("order", "seed", "window", "chunk", "num_canonical_nodes")
_RUNS = {"batch": PerBatch, "rank": PerRank}


def native_mixture(node: Marked, what: str = "a mixture", more: tuple[str, ...] = ()) -> MixtureEntry:
    """Return the mixture that a mapping describes; ``more`` are additional allowed keys."""
    keys = node.mapping(what, (*_MIXTURE_KEYS, *more))
    sources = {name: _source(name, source) for name, source in keys["sources"].mapping("sources").items()}
    if not sources:
        raise keys["sources"].error("sources names no dataset", "sources: {web: {path: web/*.tar, weight: 0.8}, ...}")
    _check_shares(sources)
    arguments: dict[str, Any] = {}
    for name in ("seed", "epoch_size"):
        if name in keys:
            arguments[name] = keys[name].whole(name)
    for name, known in (("unit", ("samples", "tokens")), ("length", None)):
        if name in keys:
            arguments[name] = _word(keys[name], name, known)
    if "choice" in keys:
        arguments["choice"] = _choice(keys["choice"])
    if "missing" in keys:
        missing = keys["missing"]
        is_mapping = isinstance(missing.value, dict)
        arguments["missing"] = (
            _plain_mapping(missing, "missing") if is_mapping else _word(missing, "missing", ("none",))
        )
    if "ends" in keys:
        used = {*keys, *(source.share[0] for source in sources.values() if source.share)}
        if sizes := [name for name in ("epoch_size", "repeat", "choose") if name in used]:
            msg = f"ends and {sizes[0]} both set the end of an epoch"
            raise node.keys["ends"].error(msg, "leave out ends")
    changes = keys["changes"].items("changes") if "changes" in keys else []
    return MixtureEntry(
        node,
        sources,
        arguments,
        ends=_word(keys["ends"], "ends", ENDS) if "ends" in keys else "first",
        max_repeats=keys["max_repeats"].number("max_repeats") if "max_repeats" in keys else None,
        shuffle=_shuffle(keys.get("shuffle")),
        changes=_changes(changes, sources),
    )


def _source(name: str, node: Marked) -> SourceEntry:
    what = f"the source {name!r}"
    if not name or "/" in name:
        msg = f"the name of a source is a text without '/'; got {name!r}"
        raise node.error(msg, "'/' separates the names of nested mixtures")
    if not isinstance(node.value, dict):
        return SourceEntry(node, path=_path(node, what))
    shares = [key for key in SHARES if key in node.value]
    if len(shares) > 1:
        raise node.keys[shares[1]].error(f"{what} has {' and '.join(shares)}; a source has one of {', '.join(SHARES)}")
    share = (shares[0], _share(node.value[shares[0]], what, shares[0])) if shares else None
    if "sources" in node.value:
        inner = native_mixture(node, f"{what}, a mixture,", SHARES)
        return SourceEntry(node, inner=inner, share=share)
    keys = node.mapping(what, _SOURCE_KEYS)
    if "path" not in keys:
        raise node.error(f"{what} has neither a path nor sources", "path: web/*.tar")
    return SourceEntry(
        node,
        path=_path(keys["path"], what),
        share=share,
        opening={key: _opening(key, keys[key], node.path) for key in _OPENING_KEYS if key in keys},
        select=_plain_mapping(keys["select"], "select") if "select" in keys else {},
        columns=_list_of(keys["columns"].texts("columns")) if "columns" in keys else (),
        shuffle=_shuffle(keys.get("shuffle")),
        max_repeats=keys["max_repeats"].number(f"max_repeats of {what}") if "max_repeats" in keys else None,
    )


def _share(node: Marked, what: str, key: str) -> Fraction:
    if key == "choose":
        return Fraction(node.whole(f"choose of {what}"))
    number = node.number(f"{key} of {what}")
    if number < 0:
        raise node.error(f"{key} of {what} must be at least 0; got {node.value}")
    return number


def _check_shares(sources: Mapping[str, SourceEntry]) -> None:
    """Raise an error at the first source with another kind of share than the first source."""
    first_name, first = next(iter(sources.items()))
    first_kind = first.share and first.share[0]
    for name, source in sources.items():
        kind = source.share and source.share[0]
        if (kind is None) != (first_kind is None) or (kind != first_kind and "weight" in (kind, first_kind)):
            theirs = "one" if kind is None else first_kind or "none"
            msg = f"{name!r} has {kind or f'no {first_kind}'}, but {first_name!r} has {theirs}"
            raise source.where.error(msg, "all sources have a weight, or all have repeat or choose, or none has any")


def _path(node: Marked, what: str) -> str | list[str]:
    texts = node.texts(f"path of {what}")
    return beside(node.path, texts) if isinstance(texts, str) else [beside(node.path, text) for text in texts]


def _opening(key: str, node: Marked, file: str) -> Any:
    if key == "storage_options":
        return _storage_options(node)
    if key == "index":
        return beside(file, node.text(key))
    if key == "index_columns" and isinstance(node.value, dict):
        return node.plain()
    if key == "format":
        return node.text(key)
    return _list_of(node.texts(key)) if key == "index_columns" else node.texts(key)


def _storage_options(node: Marked) -> dict[str, Any]:
    """Return the options of a source; errors quote no values, which may be keys."""
    if isinstance(node.value, str):
        raise node.error("storage_options maps names to values; got a text", "storage_options: {anonymous: true}")
    for name in node.mapping("storage_options"):
        if name not in _STORAGE_OPTIONS:
            msg = f"storage_options of a mixture file may not have {name!r}"
            hint = (
                f"pass it in Python, shoal.open(..., storage_options=...); a file takes {', '.join(_STORAGE_OPTIONS)}"
            )
            raise node.keys[name].error(msg, did_you_mean(name, _STORAGE_OPTIONS) + hint)
    return _plain_mapping(node, "storage_options")


def _plain_mapping(node: Marked, what: str) -> dict[str, Any]:
    return {name: value.plain() for name, value in node.mapping(what).items()}


def _choice(node: Marked) -> Any:
    if isinstance(node.value, dict):
        keys = node.mapping("choice", _RUNS)
        if len(keys) == 1:
            ((name, samples),) = keys.items()
            if size := samples.whole(f"choice of a {name}"):
                return _RUNS[name](size)
        raise node.error("choice names one size of a batch", "choice: {batch: 256} or {rank: 32}")
    return _word(node, "choice", ("even", "random"))


def _shuffle(node: Marked | None) -> dict[str, Any] | None:
    if node is None or node.value == "false":
        return None
    if node.value == "true":
        return {}
    keys = node.mapping("shuffle", _SHUFFLE_KEYS)
    arguments: dict[str, Any] = {}
    for name, value in keys.items():
        is_number = name in ("seed", "num_canonical_nodes") or isinstance(value.plain(), int)
        arguments[name] = value.whole(name) if is_number else value.text(name)
    return arguments


def _changes(nodes: list[Marked], sources: Mapping[str, SourceEntry]) -> list[ChangeEntry]:
    changes: list[ChangeEntry] = []
    for node in nodes:
        keys = node.mapping("a change", ("at", "ramp", "weights"))
        if missing := [name for name in ("at", "weights") if name not in keys]:
            msg = f"a change has no {missing[0]}"
            raise node.error(msg, "- {at: 100000, ramp: 1000, weights: {web: 0.5, code: 0.5}}")
        weights = keys["weights"].mapping("weights of a change")
        for name in weights:
            if name not in sources:
                msg = f"there is no source {name!r}"
                known = f"the sources are {', '.join(sources)}"
                raise keys["weights"].keys[name].error(msg, did_you_mean(name, sources) + known)
        if left := [name for name in sources if name not in weights]:
            msg = f"weights of a change name every source, but {left[0]!r} is missing"
            raise keys["weights"].error(msg, f"{left[0]}: 0 retires it")
        at = keys["at"].whole("at")
        if at <= (changes[-1].at if changes else 0):
            msg = f"at must be after the position of the last change; got {at}"
            raise keys["at"].error(msg, "weights of the sources hold from position 0")
        ramp = keys["ramp"].whole("ramp") if "ramp" in keys else 0
        shares = {name: _share(weight, f"a change, {name!r}", "weight") for name, weight in weights.items()}
        changes.append(ChangeEntry(node, at, ramp, shares))
    return changes


def _word(node: Marked, what: str, known: tuple[str, ...] | None) -> str:
    word = node.text(what)
    if known is not None and word not in known:
        raise node.error(f"{what} must be one of {', '.join(known)}; got {word!r}", did_you_mean(word, known).rstrip())
    return word


def _list_of(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts
