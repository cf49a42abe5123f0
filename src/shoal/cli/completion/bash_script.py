"""The completion of bash, from version 3.2 of macOS on, without the package bash-completion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shoal.cli.completion.offered_words import DIRECTORIES, FILES, WORDS, OfferedOption, OfferedValue, OfferedVerb

# An empty answer makes bash complete names of files itself, with its own quoting; `compopt` (not in 3.2) prevents that
# where no file is meant. "--name=value" arrives as three words.
_TEMPLATE = """\
# Completion of shoal for bash: source <(shoal --print-completion bash)
_shoal_words() {{ COMPREPLY=($(compgen -W "$1" -- "$cur")); compopt +o default +o bashdefault 2>/dev/null; }}
_shoal_files() {{ COMPREPLY=(); }}
_shoal_directories() {{
    local IFS=$'\\n'
    COMPREPLY=($(compgen -d -- "$cur"))
    compopt -o filenames +o default +o bashdefault 2>/dev/null
}}

_shoal() {{
    local cur="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" verb="" index
    if [[ $cur == "=" ]]; then
        cur=""
    elif [[ $previous == "=" ]]; then
        previous="${{COMP_WORDS[COMP_CWORD-2]}}"
    fi
    for ((index = 1; index < COMP_CWORD; index++)); do
        if [[ ${{COMP_WORDS[index]}} != [-=]* ]]; then
            verb="${{COMP_WORDS[index]}}"
            break
        fi
    done
    case "$verb $previous" in
{values}
    esac
    case "$verb" in
{verbs}
    *) _shoal_files ;;
    esac
}}
complete -o bashdefault -o default -F _shoal shoal
"""


def bash_script(verbs: Sequence[OfferedVerb], options: Sequence[OfferedOption]) -> str:
    """Return the script for the verbs, and for the options that come without a verb."""
    values = [line for verb in verbs for line in _values_of(verb.name, verb.options)]
    offered = [_branch(verb.name, verb.options, _call(verb.value)) for verb in verbs]
    names = " ".join(verb.name for verb in verbs)
    first = _branch('""', options, f'_shoal_words "{names}"')
    values = [*_values_of("", options), *values]
    return _TEMPLATE.format(values="\n".join(values), verbs="\n".join([first, *offered]))


def _branch(pattern: str, options: Iterable[OfferedOption], call: str) -> str:
    """Return a branch that offers options after a hyphen, and else makes a call."""
    names = " ".join(name for option in options for name in option.names)
    return f'    {pattern})\n        if [[ $cur == -* ]]; then _shoal_words "{names}"; else {call}; fi ;;'


def _values_of(verb: str, options: Iterable[OfferedOption]) -> Iterable[str]:
    """Yield a branch for each kind of value: "pack --seed"|"pack --workers") ... ;;."""
    patterns: dict[str, list[str]] = {}
    for option in options:
        if option.value is not None:
            patterns.setdefault(_call(option.value), []).extend(f'"{verb} {name}"' for name in option.names)
    for call, names in patterns.items():
        yield f"    {'|'.join(names)}) {call}; return ;;"


def _call(value: OfferedValue) -> str:
    if value.kind == WORDS:
        return f'_shoal_words "{" ".join(value.words)}"'
    return {FILES: "_shoal_files", DIRECTORIES: "_shoal_directories"}.get(value.kind, '_shoal_words ""')
