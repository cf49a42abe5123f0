"""The chat templates and special tokens of a model: from its folder, or from a tokenizer of `transformers`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

from shoal.errors import StorageError, UsageError
from shoal.hints import did_you_mean
from shoal.pipeline.stages.tokens.tokenizing import TokenizerSource, tokenizer_source
from shoal.storage.sources.local_patterns import local_path
from shoal.storage.store_of_url import open_store
from shoal.storage.urls import join, parent, scheme_of, without_secrets

TOOL_USE = "tool_use"
"""Name of a template for conversations with tools."""

_DEFAULT = "default"
_FILE, _CONFIG = "tokenizer.json", "tokenizer_config.json"


class ChatFiles(NamedTuple):
    """A tokenizer with its chat templates by name, and its special tokens by the names that templates use."""

    source: TokenizerSource
    templates: Mapping[str, str]
    special_tokens: Mapping[str, str]


class ChosenTemplates(NamedTuple):
    """The template of conversations, and the template of conversations with tools if that differs."""

    default: str
    tool_use: str


def chat_files(tokenizer: Any) -> ChatFiles:
    """Read the tokenizer, templates and special tokens of a model.

    ``tokenizer`` is the path or URL of a folder with a ``tokenizer.json``, or of this file; or an object, whose
    templates and special tokens are attributes if it is of `transformers`.
    """
    if not isinstance(tokenizer, str | os.PathLike):
        templates = getattr(tokenizer, "chat_template", None)
        special = {name: str(token) for name, token in (getattr(tokenizer, "special_tokens_map", None) or {}).items()}
        return ChatFiles(tokenizer_source(tokenizer, "chat_tokens"), _by_name(templates), special)
    path = local_path(os.fspath(tokenizer))
    is_file = path.endswith(".json")
    folder = (parent(path) if scheme_of(path) else os.path.dirname(path)) if is_file else path  # noqa: PTH120  # a path or URL
    source = tokenizer_source(path if is_file else join(path, _FILE), "chat_tokens")
    config = _json_in(folder, _CONFIG)
    special = config if "added_tokens_decoder" in config else config | _json_in(folder, "special_tokens_map.json")
    stored = {_DEFAULT: "chat_template.jinja", TOOL_USE: f"additional_chat_templates/{TOOL_USE}.jinja"}
    texts = {name: text for name, file in stored.items() if (text := _text_in(folder, file)) is not None}
    return ChatFiles(source, texts or _by_name(config.get("chat_template")), _special_tokens(special))


def chosen_templates(files: ChatFiles, template: Any) -> ChosenTemplates:
    """Return the templates for the argument ``template``: a Jinja text, a file, a name, or None for the model's own."""
    if isinstance(template, os.PathLike) or (isinstance(template, str) and template.endswith(".jinja")):
        path = local_path(os.fspath(template))
        template = _read(path).decode()
    elif template in files.templates:
        template = files.templates[template]
    elif template is None:
        return _own_templates(files)
    if not isinstance(template, str) or "{" not in template:
        names = ", ".join(files.templates) or "none"
        msg = f"chat_tokens(template={template!r}) is no Jinja text, no file, and no template of the model ({names})"
        raise UsageError(msg, hint=f"{did_you_mean(template, files.templates)}a path of a file ends in .jinja")
    return ChosenTemplates(template, template)


def _own_templates(files: ChatFiles) -> ChosenTemplates:
    if _DEFAULT not in files.templates:
        names = ", ".join(files.templates)
        msg = f"the tokenizer {without_secrets(files.source.name)} has no chat template"
        msg += f" of the name {_DEFAULT!r}; it has {names}" if names else ""
        hint = "chat_tokens(template=...) takes a Jinja text, a .jinja file, or the name of a template"
        raise UsageError(msg, hint=f"{hint}; models keep it in chat_template.jinja or {_CONFIG} beside {_FILE}")
    default = files.templates[_DEFAULT]
    return ChosenTemplates(default, files.templates.get(TOOL_USE, default))


def _by_name(templates: Any) -> dict[str, str]:
    """Return templates by name: `transformers` keeps a text, a dict, or a list of names and texts."""
    if isinstance(templates, str):
        return {_DEFAULT: templates}
    if isinstance(templates, list | tuple):
        return {str(each["name"]): str(each["template"]) for each in templates}
    return dict(templates or {})


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens of a configuration: a text, or a dict with the text as ``content``."""
    more = [config.get(name) for name in ("extra_special_tokens", "model_specific_special_tokens")]
    tokens = {name: value for name, value in config.items() if name.endswith("_token")}
    for each in more:
        tokens |= each if isinstance(each, dict) else {}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in tokens.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _json_in(folder: str, name: str) -> dict[str, Any]:
    text = _text_in(folder, name)
    try:
        fields = {} if text is None else json.loads(text)
    except ValueError as error:
        msg = f"{without_secrets(join(folder, name))} is not JSON: {error}"
        raise UsageError(msg, hint="download the file of the model again") from None
    return fields if isinstance(fields, dict) else {}


def _text_in(folder: str, name: str) -> str | None:
    path = join(folder, name)
    return None if open_store(path).find(path) is None else _read(path).decode()


def _read(path: str) -> bytes:
    try:
        return bytes(open_store(path).map(path))
    except StorageError as error:
        msg = f"{PurePath(without_secrets(path)).name} cannot be read: {error.message}"
        raise UsageError(msg, hint="download the model first: chat_tokens reads files and URLs, no hub") from None
