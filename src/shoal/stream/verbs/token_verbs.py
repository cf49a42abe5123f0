"""Methods of a dataset that make tokens of a sample, or rearrange the tokens."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, Self

from shoal.pipeline.stages.conversations.chat_tokens import CONVERSATION, chat_tokens_with
from shoal.pipeline.stages.map_and_filter import SeededMap
from shoal.pipeline.stages.stage import Stage
from shoal.pipeline.stages.tokens.fill_in_middle import fill_in_middle_with
from shoal.pipeline.stages.tokens.tokenizing import tokenize_with
from shoal.stream.verbs.length_verbs import LengthVerbs


class TokenVerbs(LengthVerbs):
    """Methods of `Dataset` for the tokens of single samples."""

    def tokenize(self, tokenizer: Any, *, field: str = "text", to: str = "tokens") -> Self:
        """Replace a text by its tokens, and add the number of tokens as the field ``num_tokens``.

        The tokens are an array of shape (num_tokens,), of uint16 if the vocabulary fits, else of int32. Special tokens
        are added as the file says; truncation and padding of the file are not applied. The stage has no state. Loaders
        run the stage ahead, in threads or in workers, as `decode`. `stats` counts the tokens as ``num_tokens``. To
        tokenize only once, use ``shoal pack --tokenize``.

        Parameters
        ----------
        tokenizer
            The path or URL of a ``tokenizer.json``, a `tokenizers.Tokenizer`, or a fast tokenizer of `transformers`.
            Each process reads the file once, and refuses a file that has changed. TOKENIZERS_PARALLELISM is set to
            false unless you set it: the library's threads neither help a loader nor outlive a fork.
        field
            The text's field or path: str, or UTF-8 in bytes. Other bytes and nulls count as damage.
        to
            Field of the tokens.

        Raises
        ------
        UsageError
            The file does not exist or is not a tokenizer, `tokenizers` is not installed, or `batch` was called before.

        Examples
        --------
        >>> ds.tokenize("tokenizer.json", field="txt")[125]
        {'__key__': 'dog/005', 'cls': b'1', 'tokens': array([2, 9], dtype=uint16), 'num_tokens': 2}
        """
        return self._then(tokenize_with(tokenizer, field=field, to=to), "tokenize()")

    def chat_tokens(
        self,
        tokenizer: Any,
        *,
        template: Any = None,
        train_on: str = "assistant",
        field: str | Sequence[str] = CONVERSATION,
        tools: str = "tools",
        prompt: str | None = None,
        variables: Mapping[str, Any] | None = None,
        date: dt.date | str | None = None,
    ) -> Self:
        """Replace a conversation by its tokens and the mask of the tokens to learn, by the chat template of a model.

        Tokens and mask equal those of `transformers` (``apply_chat_template(return_assistant_tokens_mask=True)``):
        ``tokens`` is an array of shape (num_tokens,), as from `tokenize`, and ``loss_mask`` an array of 0 and 1 of the
        same shape, for ``pack_sequences(fields=["loss_mask"])``. ``num_tokens`` is the number of tokens. The stage has
        no state, and states name the tokenizer and the template. Conversations are never cut. A conversation that the
        template refuses counts as damage (`reading`).

        Parameters
        ----------
        tokenizer
            The path or URL of a folder with ``tokenizer.json`` and the model's template (``chat_template.jinja`` or
            ``tokenizer_config.json``), a fast tokenizer of `transformers`, or a `tokenizers.Tokenizer` with
            ``template``.
        template
            A template of your own: Jinja text, a ``.jinja`` file, or the name of a template of the model.
        train_on
            The tokens to learn: "assistant" for all text that the template marks by ``{% generation %}``, "last" for
            the last marked text, "all" for every token.
        field
            The field or path of the messages, dicts or JSON, with "role" and "content" or, as ShareGPT, with "from" and
            "value"; ";" separates alternatives. A list of fields (``["chosen", "rejected"]``) keeps conversations in
            one sample, with the fields ``chosen_tokens``, ``chosen_mask``, and so on.
        tools
            The field of JSON schemas of tools, if a sample has it.
        prompt
            Field of messages that come before those of each ``field``.
        variables
            Variables of the template, such as ``{"enable_thinking": False}``.
        date
            The date for templates that write the date of the day; required for these, so that tokens stay the same.

        Raises
        ------
        UsageError
            There is no tokenizer or template, the template does not mark the assistant's text, `tokenizers` or `jinja2`
            is not installed, or `batch` was called before.

        Examples
        --------
        >>> template = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}"
        >>> chats = ds.map(lambda sample: {"messages": [{"role": "assistant", "content": sample["txt"].decode()}]})
        >>> chats.chat_tokens("tokenizer.json", template=template)[125]["loss_mask"]
        array([1, 1, 0], dtype=uint8)
        """
        stage = chat_tokens_with(
            tokenizer, template=template, train_on=train_on, field=field, tools=tools, prompt=prompt,
            variables=variables, date=date,
        )  # fmt: skip
        return self._then(stage, "chat_tokens()")

    def fill_in_middle(
        self,
        *,
        prefix: int,
        middle: int,
        suffix: int,
        rate: float = 0.5,
        spm_rate: float = 0.5,
        end: int | None = None,
        keep_length: bool = True,
        key: str = "tokens",
        seed: bool | int = True,
    ) -> Self:
        """Move the middle of a document to its end, so that a model learns to fill gaps.

        A document becomes ``[prefix] beginning [suffix] end [middle] middle``, with new tokens in brackets; with the
        end first, ``[prefix] [suffix] end [middle] beginning middle``. Two random cuts make the three parts. The seed
        of the order, the epoch and the sample id determine the cuts, as in a seeded `map`: the cuts are the same at any
        world size and after a resume, and differ between epochs.

        Parameters
        ----------
        prefix, middle, suffix
            The new tokens, such as ``tokenizer.token_to_id("<|fim_prefix|>")``.
        rate
            The share of documents to rearrange.
        spm_rate
            The share of rearranged documents with the end first.
        end
            A token that stays at the end of a document; omit it if `pack_sequences` adds the separator.
        keep_length
            A rearranged document gives up its last three tokens for the new tokens, so that the lengths in the index
            stay true for `pack_sequences`. If false, the document has three more tokens, which nobody knows before
            reading (``pack_sequences(lengths=None)``). Documents of fewer than four tokens stay.
        key
            The field of the tokens. ``num_tokens`` follows; other fields along the tokens are an error.
        seed
            A number instead of the seed of the order, as in `map`.

        Examples
        --------
        >>> gaps = docs.fill_in_middle(prefix=901, middle=902, suffix=903, rate=1, spm_rate=0, seed=4)
        >>> docs[0]["tokens"].tolist(), gaps[0]["tokens"].tolist()
        ([100, 101, 102, 103, 104, 105, 106, 107], [901, 100, 101, 102, 903, 104, 902, 103])
        """
        function = fill_in_middle_with(
            prefix=prefix, middle=middle, suffix=suffix, rate=rate, spm_rate=spm_rate, end=end,
            keep_length=keep_length, key=key,
        )  # fmt: skip
        return self._then(SeededMap.of(function, seed, "numpy"), "fill_in_middle()")

    def _then(self, stage: Stage, verb: str, *, takes_batches: bool = False) -> Self:
        return type(self)(self.stream.spec.then(stage, verb, takes_batches=takes_batches))
