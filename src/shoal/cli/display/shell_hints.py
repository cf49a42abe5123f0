"""Hints of the library, which speak Python, in the options of a verb of the command line."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType

# Arguments whose option has another name. Of several options, the first that the verb has.
_OPTIONS_OF_ARGUMENTS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "format": ("--to", "--format"),
    "source_format": ("--format",),
    "num_workers": ("--workers",),
    "num_readers": ("--readers",),
    "grouped": ("--group",),
    "labelled": ("--label",),
    "global_batch_size": ("--global-batch",),
    "storage_options": ("--storage-option",),
    "index_columns": ("--columns",),
    "grace_seconds": ("--grace",),
    "to": ("--parts",),
})  # fmt: skip

_VALUE = r"\"[^\"]*\"|'[^']*'|[\w.]+"
_ARGUMENT = re.compile(rf"\b(?P<name>[a-z_]+)=(?![\[{{(])(?P<value>{_VALUE})?")
# A call with one argument: "reading(on_error='skip')", "shoal.open(..., split='train')", ".shuffle(window='2GiB')".
_CALL = re.compile(rf"\.?(?:\w+\.)*\w+\((?:\.\.\., *)?(?P<argument>[a-z_]+=(?:{_VALUE})?)(?:\.\.\.)?\)")
_OTHERS = (
    (re.compile(r'index_columns=\{"([^"=]+)[^"]*": VALUE\}'), "--missing", r"--missing \1=VALUE"),
    (re.compile(r"text_field= of repack\(\), field= of tokenize\(\)"), "--text-field", "--text-field"),
    (re.compile(r"deadline_seconds in storage_options"), "--deadline", "--deadline"),
)
# A clause, or the end of one, that advises to skip samples, which not every verb does.
_SKIPPING = re.compile(r"(?:^|, )(?:or )?(?:without )?(?:reading\()?on_error=.*")
_COMMANDS = re.compile(r"(`[^`]*`)")  # are in the words of the shell already


def in_shell(hint: str, options: Collection[str]) -> str:
    """Return a hint with the verb's options in place of Python arguments; what the verb lacks stays as it is.

    Advice to skip samples is left out where the verb does not.

    >>> in_shell('reading(on_error="skip") leaves out such samples', ["--on-error"])
    '--on-error skip leaves out such samples'
    >>> in_shell('a larger window=; format="mds" holds images', ["--to", "--window", "--format"])
    'a larger --window; --to mds holds images'
    >>> in_shell('correct the line; reading(on_error="skip") leaves out such samples', ["--window"])
    'correct the line'
    """

    def option_of(match: re.Match[str]) -> str:
        return _option(match, options) or match[0]

    def call(match: re.Match[str]) -> str:
        argument = _ARGUMENT.fullmatch(match["argument"])
        return (argument and _option(argument, options)) or match[0]

    hint = hint if "--on-error" in options else _without_skipping(hint)
    for pattern, option, text in _OTHERS:
        hint = pattern.sub(text, hint) if option in options else hint
    parts = _COMMANDS.split(hint)
    return "".join(part if part.startswith("`") else _ARGUMENT.sub(option_of, _CALL.sub(call, part)) for part in parts)


def _without_skipping(hint: str) -> str:
    clauses = [_SKIPPING.sub("", clause) for clause in hint.split("; ")]
    return "; ".join(clause for clause in clauses if clause and "on_error=" not in clause)


def _option(argument: re.Match[str], options: Collection[str]) -> str | None:
    """Return an argument as it is written in a shell; None if the verb has no such option."""
    name, value = argument["name"], (argument["value"] or "").strip("\"'")
    known = _OPTIONS_OF_ARGUMENTS.get(name, (f"--{name.replace('_', '-')}",))
    if name in ("labelled", "grouped") and value in ("True", "False"):
        known, value = ((f"--no-{known[0][2:]}",) if value == "False" else known), ""
    if value in ("None", "False"):  # a shell has no word for it
        return None
    option = next((option for option in known if option in options), None)
    if option is None:
        return None
    return f"{option} {value}" if value and value != "True" else option
