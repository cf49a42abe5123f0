"""The stage that turns a conversation into tokens, and a mask of the tokens that a model learns."""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as attribute
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.arguments import as_choice, as_text, as_texts, with_type
from shoal.errors import UsageError
from shoal.hints import did_you_mean
from shoal.pipeline.packed_fields import LOSS_MASK
from shoal.pipeline.stages.chosen_fields import field_named, fields_of, value_at, without_value
from shoal.pipeline.stages.conversations.chat_files import ChosenTemplates, chat_files, chosen_templates
from shoal.pipeline.stages.conversations.jinja_templates import check_jinja, compiled, marks_generation, render
from shoal.pipeline.stages.conversations.messages import messages_in, plain, tools_in
from shoal.pipeline.stages.decode import NO_DAMAGE
from shoal.pipeline.stages.running import FieldError
from shoal.pipeline.stages.stage import Stage
from shoal.pipeline.stages.tokens.tokenizing import (
    COUNT_FIELD,
    TokenizerSource,
    dtype_of_tokens,
    loaded_tokenizer,
    refuse_half_characters,
)
from shoal.storage.urls import without_secrets

CONVERSATION = "messages;conversations"
"""Fields of a conversation: the names of OpenAI and of ShareGPT."""

TRAIN_ON = ("assistant", "last", "all")

_IDENTITY_BYTES = 8


class ChatTemplate(NamedTuple):
    """Templates, the variables of both, and the date for ``strftime_now``."""

    texts: ChosenTemplates
    variables: Mapping[str, Any]
    day: dt.date | None

    @property
    def identity(self) -> str:
        """A digest of all that determines the text of a conversation."""
        words = json.dumps([*self.texts, self.variables, str(self.day)], sort_keys=True)
        return hashlib.blake2b(words.encode(), digest_size=_IDENTITY_BYTES).hexdigest()


class _Tokenized(NamedTuple):
    tokens: NDArray[Any]
    mask: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ChatTokens(Stage):
    """A stage that replaces conversations by their tokens, the mask of learned tokens, and the number of tokens.

    Parameters
    ----------
    source
        The tokenizer.
    template
        Templates and their variables.
    train_on
        The learned tokens: an item of `TRAIN_ON`.
    outputs
        The fields of tokens and mask by the field of the conversation.
    tools
        Field of the tools, which a sample may lack.
    prompt
        Field of messages before each conversation; "" for none.
    count
        Called with the number of tokens of each sample, perhaps by several threads at a time.
    """

    source: TokenizerSource
    template: ChatTemplate
    train_on: str
    outputs: Mapping[str, tuple[str, str]]
    tools: str = "tools"
    prompt: str = ""
    count: Callable[[int], None] | None = attribute(default=None, compare=False)

    tokenizes = True

    @property
    def identity(self) -> object:
        """The inputs that determine the fields; the file's location is not one of them."""
        return self.source.digest, self.template.identity, self.train_on, dict(self.outputs), self.tools, self.prompt

    @property
    def token_identities(self) -> tuple[str, ...]:  # type: ignore[override]
        """The identities of the tokenizer and of the templates."""
        return self.source.identity, self.template.identity

    def counting(self, count: Callable[[int], None]) -> ChatTokens:
        """Return this stage with a callback for the number of tokens of each sample."""
        return replace(self, count=count)

    def __repr__(self) -> str:
        name = without_secrets(self.source.name)
        return f"chat_tokens({name if self.source.text is not None else repr(name)})"

    def __call__(self, sample: Any, _: int) -> Any:
        """Return the sample with tokens in place of its conversations."""
        fields = fields_of(sample, repr(self))
        tools = self._tools(fields)
        before = self._messages(fields, self.prompt) if self.prompt else []
        made: dict[str, Any] = {}
        for name, (tokens_field, mask_field) in self.outputs.items():
            messages = [*before, *self._messages(fields, name)]
            made[tokens_field], made[mask_field] = self._tokenized(messages, tools, name)
        num_tokens = sum(len(made[tokens_field]) for tokens_field, _ in self.outputs.values())
        if self.count is not None:
            self.count(num_tokens)
        rest: Mapping[str, Any] = fields
        for name in (*self.outputs, self.prompt, self.tools):
            rest = without_value(rest, field_named(fields, name) or name)
        return {**rest, **made, COUNT_FIELD: num_tokens}

    def _tools(self, fields: Mapping[str, Any]) -> list[Any] | None:
        if self.tools not in fields:
            return None
        try:
            return tools_in(fields[self.tools])
        except ValueError as error:
            raise FieldError(f"the field {self.tools!r}", "tools are a list of JSON schemas, or JSON") from error

    def _messages(self, fields: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
        try:
            value = value_at(fields, name, repr(self))
        except UsageError as error:
            hint = "chat_tokens(field=) names the field of the messages"
            raise UsageError(error.message, hint=f"{did_you_mean(name, fields)}{hint}") from None
        try:
            return messages_in(value)
        except ValueError as error:
            remedy = "a message is {'role': ..., 'content': ...}; map() before chat_tokens() converts other forms"
            raise FieldError(f"the field {field_named(fields, name) or name!r}", remedy) from error

    def _tokenized(self, messages: list[dict[str, Any]], tools: list[Any] | None, name: str) -> _Tokenized:
        texts = self.template.texts
        template = compiled(texts.default if tools is None else texts.tool_use, self.template.day)
        variables = {"documents": None, "add_generation_prompt": False, **self.template.variables}
        try:
            text, generated = render(template, {**variables, "messages": messages, "tools": tools})
        except NO_DAMAGE:
            raise
        except Exception as error:  # templates refuse conversations, and fail on unexpected values
            remedy = "the chat template refuses the conversation; filter() or map() before chat_tokens() mends it"
            raise FieldError(f"the conversation {name!r}", remedy) from error
        encoder = loaded_tokenizer(self.source)
        encode = encoder.encode_batch_fast if self.train_on == "all" else encoder.encode_batch  # without offsets
        try:  # a batch of one, as in `Tokenize`
            encoding = encode([text], add_special_tokens=False)[0]
        except TypeError:
            refuse_half_characters(name, text)
            raise
        tokens = np.array(encoding.ids, dtype=dtype_of_tokens(encoder))
        return _Tokenized(tokens, self._mask(encoding, generated))

    def _mask(self, encoding: Any, generated: Sequence[tuple[int, int]]) -> NDArray[np.uint8]:
        """Return 1 for tokens that overlap a generated text, else 0."""
        if self.train_on == "all":
            return np.ones(len(encoding.ids), dtype=np.uint8)
        # half the time of np.array, for a list of pairs
        offsets = np.fromiter(itertools.chain.from_iterable(encoding.offsets), np.int64, 2 * len(encoding))
        begins, ends = offsets[::2], offsets[1::2]
        # Tokenizers that trim offsets leave no character to a token of spaces: it begins where the token before ends.
        before = np.concatenate([[0], ends[:-1]])
        begins = np.where((begins == ends) & (before < begins), before, begins)
        blocks = generated[-1:] if self.train_on == "last" else generated
        ranges = np.array(blocks, dtype=np.int64).reshape(-1, 2)
        ranges = ranges[ranges[:, 0] < ranges[:, 1]]
        # The ranges that begin before the end of a token, less the ranges that end before the token: O(log num_ranges).
        overlapping = np.searchsorted(ranges[:, 0], ends) - np.searchsorted(ranges[:, 1], begins, side="right")
        return (overlapping > 0).astype(np.uint8)


def chat_tokens_with(
    tokenizer: Any,
    *,
    template: Any = None,
    train_on: str = "assistant",
    field: str | Sequence[str] = CONVERSATION,
    tools: str = "tools",
    prompt: str | None = None,
    variables: Mapping[str, Any] | None = None,
    date: dt.date | str | None = None,
) -> ChatTokens:
    """Read and check a tokenizer and its chat template, and return the stage for the arguments of `Dataset`."""
    check_jinja()
    as_choice("chat_tokens(train_on=)", train_on, TRAIN_ON)
    files = chat_files(tokenizer)
    texts = chosen_templates(files, template)
    chat = ChatTemplate(texts, {**files.special_tokens, **_variables(variables)}, _day(date))
    for text in texts:
        compiled(text, chat.day)
        if train_on != "all" and not marks_generation(text):
            msg = f"chat_tokens(train_on={train_on!r}): the chat template does not mark the assistant's text"
            hint = "write {% generation %} and {% endgeneration %} around the assistant's text, and pass template=; "
            raise UsageError(msg, hint=f"{hint}train_on='all' learns every token")
    stage = ChatTokens(
        files.source, chat, train_on, _outputs(field), as_text("chat_tokens(tools=)", tools),
        "" if prompt is None else as_text("chat_tokens(prompt=)", prompt),
    )  # fmt: skip
    loaded_tokenizer(stage.source)
    return stage


def _outputs(field: str | Sequence[str]) -> dict[str, tuple[str, str]]:
    if isinstance(field, str):
        return {field: ("tokens", LOSS_MASK)}
    return {name: (f"{name}_tokens", f"{name}_mask") for name in as_texts("chat_tokens(field=)", field)}


def _variables(variables: Any) -> dict[str, Any]:
    if variables is None:
        return {}
    try:
        if isinstance(variables, Mapping):
            return dict(plain(variables, "variables"))
        msg = f"chat_tokens(variables=) takes a dict; got {with_type(variables)}"
    except ValueError as error:
        msg = f"chat_tokens(variables=): {error}"
    raise UsageError(msg, hint="variables={'enable_thinking': False} sets a variable of the template")


def _day(day: Any) -> dt.date | None:
    if day is None or isinstance(day, dt.date):
        return day
    try:
        return dt.date.fromisoformat(day)
    except (TypeError, ValueError):
        msg = f"chat_tokens(date=) takes a date; got {with_type(day)}"
        raise UsageError(msg, hint="date='2026-07-31', or a datetime.date or datetime.datetime") from None
