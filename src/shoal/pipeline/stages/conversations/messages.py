"""The messages and tools of a conversation in a field: lists or JSON, with the names of OpenAI or of ShareGPT.

Templates get the same values as from `transformers`: plain JSON types, no null values in a message, and a message's
reasoning under each of its known names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.hints import did_you_mean

_REASONING = ("reasoning_content", "thinking", "reasoning")
_MOST_SHOWN = 60

ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "model"), "assistant"),
    "system": "system",
    **dict.fromkeys(("tool", "observation", "function_response"), "tool"),
}
"""Roles by the speakers of ShareGPT."""


def messages_in(value: Any) -> list[dict[str, Any]]:
    """Return the messages of a field for a template; `ValueError` describes a bad field.

    >>> messages_in('[{"from": "human", "value": "Hi"}, {"role": "assistant", "content": "Hello", "tool_calls": null}]')
    [{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hello'}]
    """
    messages = _parsed(value)
    if not isinstance(messages, list) or not messages:
        msg = f"a conversation is a list of messages; this is {_shown(messages)}"
        raise ValueError(msg)
    return [_message(message, number) for number, message in enumerate(messages)]


def tools_in(value: Any) -> list[Any] | None:
    """Return the tools of a field, JSON schemas, for a template; None if there are none.

    >>> tools_in(['{"name": "weather"}'])
    [{'name': 'weather'}]
    """
    tools = _parsed(value) if not isinstance(value, str | bytes) or value else None
    if tools is None:
        return None
    tools = [_parsed(tool) for tool in tools] if isinstance(tools, list) else tools
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        msg = f"tools are a list of JSON schemas; this is {_shown(tools)}"
        raise ValueError(msg)
    return tools


def plain(value: Any, where: str) -> Any:
    """Return a value in plain JSON types: templates call no methods of other objects."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {_key(name, where): plain(inner, f"{where}[{name!r}]") for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, f"{where}[{number}]") for number, inner in enumerate(value)]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist(), where)
    for kind in (str, bool, int, float):  # subclasses, such as enums
        if isinstance(value, kind):
            return kind(value)
    msg = f"{where} is {_shown(value)}, and a template takes texts, numbers, lists and dicts"
    raise ValueError(msg)


def _key(name: Any, where: str) -> Any:
    key = plain(name, where)
    if isinstance(key, list | dict):
        msg = f"{where} has the key {name!r}, and a template takes texts and numbers"
        raise ValueError(msg)  # noqa: TRY004  # one class for all bad fields
    return key


def _parsed(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        value = str(value, "utf-8")
    try:
        return json.loads(value) if isinstance(value, str) else plain(value, "the field")
    except RecursionError:
        msg = "its lists and dicts are nested too deeply"
        raise ValueError(msg) from None


def _message(message: Any, number: int) -> dict[str, Any]:
    if not isinstance(message, dict):
        msg = f"message {number} is {_shown(message)}, not a dict"
        raise ValueError(msg)  # noqa: TRY004  # one class for all bad fields
    fields = {name: value for name, value in message.items() if value is not None}
    if "role" not in fields and "from" in fields:
        fields = _from_sharegpt(fields, number)
    if not isinstance(fields.get("role"), str):
        msg = f"message {number} has no role: it has {', '.join(map(repr, fields)) or 'no fields'}"
        raise ValueError(msg)  # noqa: TRY004
    reasoning = next((fields[name] for name in _REASONING if name in fields), None)
    return fields if reasoning is None else {"thinking": reasoning, **fields, "reasoning_content": reasoning}


def _from_sharegpt(fields: dict[str, Any], number: int) -> dict[str, Any]:
    speaker = fields["from"]
    if not isinstance(speaker, str) or speaker not in ROLES:
        known, meant = ", ".join(ROLES), did_you_mean(speaker, ROLES) if isinstance(speaker, str) else ""
        msg = f"message {number} is from {speaker!r:.60}; {meant}known speakers are {known}"
        raise ValueError(msg)
    renamed = {"value": "content"}
    return {"role": ROLES[speaker]} | {renamed.get(name, name): fields[name] for name in fields if name != "from"}


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + '...'}"
