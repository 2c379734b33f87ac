"""Options that another version of xrep saved: new ones get their defaults, and those that are no more are ignored."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from xrep.config.sections import sections_of
from xrep.config.sizes import with_size, without_numbers
from xrep.config.values import CHOICES, Layer, flat
from xrep.errors import shown


def completed(saved: Mapping[str, Any]) -> tuple[Layer, Layer]:
    """Return the saved values of a run as the values of today's options, and those that are no options any more.

    An option that was not saved has the default that it has with the ``size`` of the run. A part that is not known
    here keeps its values.
    """
    values = with_size(without_numbers(flat(saved)))
    known: Layer = {"parts": values["parts"]} if "parts" in values else {}
    for section in sections_of(values):
        if section.kind in CHOICES:
            known[f"{section.key}.name"] = section.name
        if section.options is None:
            known |= {key: value for key, value in values.items() if key.startswith(section.above)}
        options_now = {spec.key: values.get(spec.key, spec.default) for spec in section.fields()}
        known |= {key: value for key, value in options_now.items() if value is not MISSING}
    return known, {key: value for key, value in values.items() if key not in known}


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
