"""Options that another version of xrep saved: new ones get their defaults, and those that are no more are ignored."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from xrep.config.fields import read_fields
from xrep.config.resolve import assembled, unknown_sections
from xrep.config.sections import sections_of
from xrep.config.sizes import with_size, without_numbers
from xrep.errors import shown


def completed(saved: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the saved values of a run as the values of today's options, and those that are no options any more.

    An option that was not saved has the default that it has with the ``size`` of the run. A part that is not known
    here keeps its values.

    Returns:
        Nested values, as those of ``RunConfig``; and dotted keys with the values that were left out.
    """
    merged = with_size(without_numbers(saved))
    gone = {key: saved[key] for key in unknown_sections(merged)}
    resolved: dict[str, dict[str, Any]] = {}
    for section in sections_of(merged):
        named = {} if section.name is None else {"name": section.name}
        if not section.is_chosen:
            resolved[section.key] = {**named, **section.values}
            continue
        specs = read_fields(section.key, section.options)
        defaults = {spec.name: spec.default for spec in specs if spec.default is not MISSING}
        known = {spec.name for spec in specs}
        own = {name: value for name, value in section.values.items() if name in known}
        gone |= {f"{section.key}.{name}": value for name, value in section.values.items() if name not in known}
        resolved[section.key] = {**named, **defaults, **own}
    return assembled(merged, resolved), gone


def still_known(config: type, saved: Mapping[str, Any], path: Path, section: str) -> dict[str, Any]:
    """Return the saved options that a ``Config`` dataclass has; a line on stderr names the others, which are no more.

    Args:
        path: File that the options were read from.
        section: What they are options of, such as ``model``.
    """
    known = {field.name for field in fields(config)}
    say_ignored({f"{section}.{name}": value for name, value in saved.items() if name not in known}, path)
    return {name: value for name, value in saved.items() if name in known}


def say_ignored(gone: Mapping[str, Any], path: Path) -> None:
    """Name the saved options that ``completed`` left out, if there are any, in one line on stderr."""
    if gone:
        listed = ", ".join(f"{key} {shown(value)}" for key, value in gone.items())
        print(f"warning: {path}: ignored, because this version has no such options: {listed}", file=sys.stderr)
