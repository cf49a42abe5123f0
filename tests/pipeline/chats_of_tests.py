"""Chat templates in the styles of known models, a tokenizer for them, and random conversations."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.pipeline.tokenizers_of_tests import write_tokenizer
from tokenizers import AddedToken, Tokenizer

CHATML = """\
{%- for message in messages %}
<|im_start|>{{ message.role }}
{% if message.role == 'assistant' %}
{% generation %}{{ message.content }}<|im_end|>
{% endgeneration %}
{% else %}
{{ message.content }}<|im_end|>
{% endif %}
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

LLAMA3 = """\
{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = strftime_now('%d %b %Y') %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- if tools is not none %}{{- 'Environment: ipython\\n' }}{%- endif %}
{{- 'Today Date: ' + date_string + '\\n\\n' + system_message + '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
        {{- message['content'] | trim if message.content is string else '' }}
        {%- for call in message.tool_calls or [] %}
            {{- '{"name": "' + call.function.name + '", "parameters": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}' }}
        {%- endfor %}
        {{- '<|eot_id|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}"""

ALTERNATING = """\
{{ bos_token }}{% for message in messages if message.role != 'system' %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate user/assistant') }}
{% endif %}
{% if message['role'] == 'user' %}[INST] {{ message['content'] }} [/INST]
{%- else %} {% generation %}{{ message['content'] }}{{ eos_token }}{% endgeneration %}{% endif %}
{% endfor %}"""

REASONING = """\
{%- set ns = namespace(last_query=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{%- set ns.last_query = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
        {%- if message.reasoning_content is defined and loop.index0 > ns.last_query and enable_thinking %}
            {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content or '' }}
        {%- endgeneration %}
        {%- generation %}{{- '<|im_end|>' }}{%- endgeneration %}
        {{- '\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>' + message.content + '</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
    {%- if loop.index0 > 40 %}{% break %}{% endif %}
{%- endfor %}"""

TOOLS = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
        {%- if message.content %}{{- message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {{- '<tool_call>' + (dict(name=tool_call.function.name) | tojson(sort_keys=true)) }}
            {{- tool_call.function.arguments | tojson(indent=2) + '</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message.content + '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}"""

PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
"""A template without marks."""

TEMPLATES = {
    "ChatML": CHATML,
    "Llama 3": LLAMA3,
    "alternating": ALTERNATING,
    "reasoning": REASONING,
    "tools": TOOLS,
}
SPECIAL = (
    *("<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<s>", "</s>", "<think>", "</think>"),
)
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
_WORDS = (
    *("the quick", " brown fox", "\n", "  jumps ", "dog", "", "\\", '"', "<b>&amp;</b>", "<s>"),
    *("naïve 日本", "\N{FOX FACE}\N{EMOJI MODIFIER FITZPATRICK TYPE-4}", "e\N{COMBINING ACUTE ACCENT}"),
)


def write_model(folder: Path, template: str | Mapping[str, str] | None = CHATML) -> Path:
    """Write the files of a model: a byte-level tokenizer with special tokens, and a chat template.

    Templates by name are kept in the configuration, as models of 2024 do.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(write_tokenizer(folder / "tokenizer.json")))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    end = {"__type": "AddedToken", "content": "</s>", "lstrip": False, "rstrip": False, "normalized": False}
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": end}
    if isinstance(template, Mapping):
        config["chat_template"] = [{"name": name, "template": text} for name, text in template.items()]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if isinstance(template, str):
        (folder / "chat_template.jinja").write_text(template)
    return folder


def text_of(draw: random.Random) -> str:
    """A text of letters, spaces, and characters of several bytes."""
    return "".join(draw.choice(_WORDS) for _ in range(draw.randint(1, 8)))


def conversation(draw: random.Random, style: str = "ChatML") -> list[dict[str, Any]]:
    """A conversation that a template takes, with calls of tools, reasoning and null values if it knows them."""
    messages: list[dict[str, Any]] = []
    if draw.random() < 0.5:
        messages.append({"role": "system", "content": text_of(draw)})
    for _ in range(draw.randint(1, 4)):
        messages.append({"role": "user", "content": text_of(draw)})
        answer: dict[str, Any] = {"role": "assistant", "content": text_of(draw)}
        if style in ("Llama 3", "tools") and draw.random() < 0.4:
            arguments = {"city": text_of(draw), "days": draw.randint(1, 9), "units": None}
            call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
            content = draw.choice((None, text_of(draw)))
            messages.append({"role": "assistant", "content": content, "tool_calls": [call]})
            messages.append({"role": "tool", "content": text_of(draw)})
        if style == "reasoning" and draw.random() < 0.6:
            answer[draw.choice(("reasoning_content", "thinking", "reasoning"))] = text_of(draw)
        if draw.random() < 0.3:
            answer["tool_calls"] = None
        messages.append(answer)
    if draw.random() < 0.2:
        messages.append({"role": "user", "content": text_of(draw)})
    return messages
