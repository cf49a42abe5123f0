"""The completion of zsh."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shoal.cli.completion.offered_words import DIRECTORIES, FILES, WORDS, OfferedOption, OfferedValue, OfferedVerb

_TEMPLATE = """\
#compdef shoal
# Completion of shoal for zsh: source <(shoal --print-completion zsh), or this file as _shoal in a folder of $fpath
_shoal() {{
    local curcontext="$curcontext" state line
    local -a verbs
    verbs=(
{names}
    )
    _arguments -C \\
{options}
        '1: :->verb' '*:: :->rest' && return
    case $state in
    verb) _describe -t verbs verb verbs ;;
    rest)
        case $words[1] in
{verbs}
        *) _files ;;
        esac ;;
    esac
}}
if [[ $funcstack[1] == _shoal ]]; then _shoal "$@"; else compdef _shoal shoal; fi
"""


def zsh_script(verbs: Sequence[OfferedVerb], options: Sequence[OfferedOption]) -> str:
    """Return the script for the verbs, and for the options that come without a verb."""
    names = "\n".join(f"        '{verb.name}:{verb.summary}'" for verb in verbs)
    top = "\n".join(f"        {spec} \\" for spec in _specs(options))
    branches = [
        f"        {verb.name})\n            _arguments \\\n"
        + "".join(f"                {spec} \\\n" for spec in _specs(verb.options))
        + f"                '*:value:{_action(verb.value)}' ;;"
        for verb in verbs
    ]
    return _TEMPLATE.format(names=names, options=top, verbs="\n".join(branches))


def _specs(options: Iterable[OfferedOption]) -> Iterable[str]:
    """Yield the argument of ``_arguments`` for each name of each option; an option may be repeated."""
    for option in options:
        for name in option.names:
            if option.value is None:
                yield f"'*{name}[{option.summary}]'"
            else:  # "=" after the name accepts "--name value" and "--name=value"
                sign = "=" if name.startswith("--") else "+"
                yield f"'*{name}{sign}[{option.summary}]:value:{_action(option.value)}'"


def _action(value: OfferedValue) -> str:
    if value.kind == WORDS:
        return f"({' '.join(value.words)})"
    return {FILES: "_files", DIRECTORIES: "_files -/"}.get(value.kind, " ")
