"""The completion of fish."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shoal.cli.completion.offered_words import DIRECTORIES, FILES, WORDS, OfferedOption, OfferedValue, OfferedVerb

_OPENING = """\
# Completion of shoal for fish: shoal --print-completion fish | source
complete -c shoal -e
complete -c shoal -f"""


def fish_script(verbs: Sequence[OfferedVerb], options: Sequence[OfferedOption]) -> str:
    """Return the script for the verbs, and for the options that come without a verb."""
    lines = [_OPENING, *_options("__fish_use_subcommand", options)]
    for verb in verbs:
        lines.append(f"complete -c shoal -n __fish_use_subcommand -a {verb.name} -d '{verb.summary}'")
        condition = f"'__fish_seen_subcommand_from {verb.name}'"
        lines += _options(condition, verb.options)
        if values := _values(verb.value):
            lines.append(f"complete -c shoal -n {condition} {values}")
    return "\n".join(lines) + "\n"


def _options(condition: str, options: Iterable[OfferedOption]) -> Iterable[str]:
    for option in options:
        names = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
        values = "" if option.value is None else f" -x {_values(option.value)}".rstrip()
        if option.value is not None and option.value.kind == FILES:
            values = " -r -F"
        yield f"complete -c shoal -n {condition} {' '.join(names)}{values} -d '{option.summary}'"


def _values(value: OfferedValue) -> str:
    if value.kind == WORDS:
        return f"-a '{' '.join(value.words)}'"
    return {FILES: "-F", DIRECTORIES: "-a '(__fish_complete_directories)'"}.get(value.kind, "")
