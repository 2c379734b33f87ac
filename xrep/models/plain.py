"""Plain data from a file, checked against the types of a dataclass."""

from __future__ import annotations

import sys
import typing
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, get_args, get_origin

from xrep.config.fields import members, type_in_words
from xrep.errors import UserError


def from_plain(kind: Any, value: Any, name: str) -> Any:
    """Return plain data as an instance of a type: a dataclass, or what its fields are made of.

    Args:
        name: What the data is called in messages.

    Raises:
        UserError: A key is missing or unknown, or a value has another type.
    """
    for member in members(kind):
        origin, args = get_origin(member), get_args(member)
        if isinstance(value, dict) and is_dataclass(member):
            return _instance(member, value, name)
        if isinstance(value, dict) and origin is dict:
            return {key: from_plain(args[1], each, f"{name}.{_short(key)}") for key, each in value.items()}
        if isinstance(value, list) and origin is list:
            return [from_plain(args[0], each, name) for each in value]
        if member is float and type(value) in (int, float) and abs(value) <= sys.float_info.max:  # type: ignore[operator]
            return float(value)  # type: ignore[arg-type]
        if member is Any or (origin is Literal and value in args) or (member is not float and type(value) is member):
            return value
    raise UserError(f"{name} is {_short(repr(value))}, not {_named(kind)}", cure="use another directory")


def _named(kind: Any) -> str:
    return "a table of names and values" if get_origin(kind) is dict or is_dataclass(kind) else type_in_words(kind)


def _instance(kind: Any, value: dict[Any, Any], name: str) -> Any:
    hints = typing.get_type_hints(kind)
    needed = {field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING}
    if needed - value.keys() or value.keys() - hints.keys():
        missing, unknown = sorted(needed - value.keys()), [_short(str(key)) for key in value.keys() - hints.keys()]
        problems = [f"no {key}" for key in missing] + [f"an unknown key {key!r}" for key in sorted(unknown)]
        raise UserError(f"{name} has {', '.join(problems[:5])}", cure="use another directory")
    return kind(**{key: from_plain(hints[key], each, f"{name}.{key}") for key, each in value.items()})


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
