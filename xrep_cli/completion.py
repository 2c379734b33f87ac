"""Scripts by which a shell completes commands, options and the values among which an option chooses."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

from xrep.config.fields import choices, read_fields
from xrep.errors import UserError
from xrep.registry import REGISTRIES
from xrep_cli.options import FILES, FLAGS, SELECTORS, parse

Words = dict[str, list[str]]
"""Options of a command, and the values of those that choose among a few; the entry "" has its subcommands."""
BASH = """\
_xrep() {{
    local command=${{COMP_WORDS[0]##*/}} current=${{COMP_WORDS[COMP_CWORD]}} words= first=1
    if [[ $command == xrep && $COMP_CWORD -gt 1 ]]; then command=xrep-${{COMP_WORDS[1]}} first=2; fi
    case "$command ${{COMP_WORDS[COMP_CWORD-1]}}" in
{values}
    esac
    if [[ -z $words && $current == -* ]]; then
        case $command in
{options}
        esac
    elif [[ -z $words && $COMP_CWORD == "$first" ]]; then
        case $command in
{commands}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o bashdefault -o default -F _xrep {programs}
"""
ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


def script(shell: str, commands: Sequence[str]) -> str:
    """Return the script of a shell for ``xrep`` and its commands. Raises UserError if the shell is not bash, zsh or
    fish."""
    words = {f"xrep-{name}": words_of(name) for name in commands}
    words["xrep"] = {"--help": [], "--version": [], "": [*commands, "completion"]}
    if shell == "fish":
        return _fish(words)
    if shell not in ("bash", "zsh"):
        raise UserError(f"no completion for {shell!r}", cure="write xrep completion bash, or zsh or fish")
    lines: dict[str, list[str]] = {"values": [], "options": [], "commands": []}
    for program, own in words.items():
        lines["options"].append(f'            {program}) words="{" ".join(filter(None, own))}" ;;')
        if "" in own:
            lines["commands"].append(f'            {program}) words="{" ".join(own[""])}" ;;')
        for option, values in own.items():
            if option and values:
                lines["values"].append(f'        "{program} {option}") words="{" ".join(values)}" ;;')
    text = BASH.format(**{key: "\n".join(each) for key, each in lines.items()}, programs=" ".join(words))
    return ZSH + text if shell == "zsh" else text


def words_of(name: str) -> Words:
    """Return what completes a command."""
    if name == "train":
        return _of_training()
    module, words = importlib.import_module(f"xrep_cli.{name}"), Words()
    _add(words, module.build_parser() if name == "sweep" else module.main.parser())
    return words


def _add(words: Words, parser: argparse.ArgumentParser) -> None:
    """Add the options of a parser and of those below it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            words[""] = list(action.choices)
            for below in action.choices.values():
                _add(words, below)
        elif action.option_strings:
            words[action.option_strings[-1]] = list(map(str, action.choices or ()))


def _of_training() -> Words:
    """Return the options of training with any parts."""
    words: Words = {f"--{name}": [] for name in (*FILES, *FLAGS)}
    words |= {f"--{option}": REGISTRIES[kind].names() for option, kind in SELECTORS.items()}
    targets = [REGISTRIES[kind].target(name) for kind in SELECTORS.values() for name in REGISTRIES[kind].names()]
    for spec in [*parse([]).fields, *(spec for target in targets for spec in read_fields("", f"{target}.Config"))]:
        words[f"--{spec.name.replace('_', '-')}"] = list(map(str, choices(spec.annotation) or ()))
    return words


def _fish(words: dict[str, Words]) -> str:
    lines = []
    for program, own in words.items():
        inner = program.removeprefix("xrep-")
        for option, values in own.items():
            chosen = f" -x -a '{' '.join(values)}'" if values else ""
            if not option:
                lines.append(f"complete -c {program} -n __fish_use_subcommand -f -a '{' '.join(values)}'")
            elif option.startswith("--"):
                lines.append(f"complete -c {program} -l {option[2:]}{chosen}")
                if program != "xrep":
                    within = f"-n '__fish_seen_subcommand_from {inner}'"
                    lines.append(f"complete -c xrep {within} -l {option[2:]}{chosen}")
    return "\n".join(lines) + "\n"
