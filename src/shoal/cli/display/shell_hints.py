"""Translate hints of the library from Python arguments to options of a verb."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType

# Arguments with another option name. The first existing option of the verb is used.
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
# A clause, or the end of a clause, with advice to skip samples; some verbs cannot skip.
_SKIPPING = re.compile(r"(?:^|, )(?:or )?(?:without )?(?:reading\()?on_error=.*")
_COMMANDS = re.compile(r"(`[^`]*`)")  # shell commands need no translation


def in_shell(hint: str, options: Collection[str]) -> str:
    """Replace Python arguments in a hint by the options of the verb; other arguments stay.

    Advice to skip samples is removed if the verb cannot skip.

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

    if "--on-error" not in options:
        clauses = [_SKIPPING.sub("", clause) for clause in hint.split("; ")]
        hint = "; ".join(clause for clause in clauses if clause and "on_error=" not in clause)
    for pattern, option, text in _OTHERS:
        hint = pattern.sub(text, hint) if option in options else hint
    parts = _COMMANDS.split(hint)
    return "".join(part if part.startswith("`") else _ARGUMENT.sub(option_of, _CALL.sub(call, part)) for part in parts)


def _option(argument: re.Match[str], options: Collection[str]) -> str | None:
    """Return an argument as words of a shell; None if the verb has no such option."""
    name, value = argument["name"], (argument["value"] or "").strip("\"'")
    known = _OPTIONS_OF_ARGUMENTS.get(name, (f"--{name.replace('_', '-')}",))
    if name in ("labelled", "grouped") and value in ("True", "False"):
        known, value = ((f"--no-{known[0][2:]}",) if value == "False" else known), ""
    if value in ("None", "False"):  # these values have no option
        return None
    option = next((option for option in known if option in options), None)
    if option is None:
        return None
    return f"{option} {value}" if value and value != "True" else option
