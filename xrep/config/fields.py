"""The options of a part, which are the fields of a dataclass, and conversion of values to their types."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal

from xrep.config.source import field_docstrings, option_class
from xrep.errors import UserError, shown
from xrep.registry import described

TYPE_NAMES = {
    int: "an integer",
    float: "a finite number",
    bool: "true or false",
    str: "a string",
    types.NoneType: "none",
}
PLURALS = {int: "integers", float: "finite numbers", str: "strings"}
_type_hints = functools.cache(typing.get_type_hints)


@dataclass(frozen=True)
class FieldSpec:
    """One option: a field of a dataclass."""

    section: str
    """Where the part is in a configuration: ``criterion``, or ``parts.NAME.criterion``; empty at the top."""
    name: str
    annotation: Any
    """The field's type, for example ``int | None``."""
    default: Any
    """``dataclasses.MISSING`` if the option must be given."""
    owner: type
    """The class that declares the field."""

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def help(self) -> str:
        """The string under the field, on one line."""
        return field_docstrings(self.owner).get(self.name, "")


def read_fields(section: str, target: str) -> list[FieldSpec]:
    """Return the options of a dataclass, given as ``module:Class.Config``; see ``option_class``. Raises UserError if
    there is no such dataclass."""
    return fields_of_class(section, option_class(target))


def fields_of_class(section: str, cls: type) -> list[FieldSpec]:
    """Return the options that are the fields of a dataclass and of its bases. Raises UserError if the class is not a
    dataclass."""
    name = f"{cls.__module__}:{cls.__qualname__}" if isinstance(cls, type) else shown(cls)
    if not dataclasses.is_dataclass(cls):
        raise UserError(f"{name} is not a dataclass", cure="declare the options of a part in a dataclass")
    specs = []
    try:
        hints = _type_hints(cls)
        owners = {name: base for base in reversed(cls.__mro__) for name in inspect.get_annotations(base)}
        for field in dataclasses.fields(cls):
            factory = field.default_factory
            default = field.default if factory is dataclasses.MISSING else factory()
            specs.append(FieldSpec(section, field.name, hints[field.name], default, owners[field.name]))
    except Exception as error:  # its annotations and defaults are code of whoever wrote the part
        raise UserError(f"the options {name} cannot be read: {described(error)}", cure="mend them") from error
    return specs


def convert(value: Any, annotation: Any) -> Any:
    """Convert ``value`` (from a YAML file, or a string from the command line) to a type. Raises ValueError if the value
    is not of that type."""
    allowed = members(annotation)
    if types.NoneType in allowed and (value is None or isinstance(value, str) and value.lower() in ("none", "null")):
        return None
    limit = ""
    for member in allowed:
        try:
            return _convert_one(value, member)
        except _OutOfRange as error:
            limit = str(error)
        except (ValueError, TypeError):
            continue
    raise ValueError(f"must be {limit or describe(annotation)}, not {shown(value)}")


class _OutOfRange(ValueError):
    """A value has the right type, but no option can have it. The message says what it must be."""


def choices(annotation: Any) -> list[Any]:
    """Return the values that a ``Literal``, or a union with one, allows; empty for other types."""
    literals = [member for member in members(annotation) if typing.get_origin(member) is Literal]
    return list(dict.fromkeys(choice for literal in literals for choice in typing.get_args(literal)))


def describe(annotation: Any) -> str:
    """Return a type in words: "an integer or none", "weight or proportion"."""
    allowed = [str(choice) for choice in choices(annotation)]
    for member in members(annotation):
        if typing.get_origin(member) is list:
            allowed.append(f"a list of {PLURALS.get(typing.get_args(member)[0], 'values')}")
        elif typing.get_origin(member) is not Literal:
            allowed.append(TYPE_NAMES.get(member, str(member)))
    return " or ".join([", ".join(allowed[:-1])] * (len(allowed) > 1) + allowed[-1:])


def members(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union; for any other type, the type alone."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


def _convert_one(value: Any, kind: Any) -> Any:
    if typing.get_origin(kind) is Literal:
        text = "none" if value is None else str(value)  # YAML reads the choice none as None
        named = {str(choice): choice for choice in typing.get_args(kind)}
        if text in named:
            return named[text]
    elif typing.get_origin(kind) is list:
        if isinstance(value, str):
            value = [item.strip(" \"'") for item in value.strip("[] ").split(",") if item.strip()]
        if isinstance(value, list | tuple):
            return [convert(item, typing.get_args(kind)[0]) for item in value]
    elif kind is bool:
        text = str(value).lower()
        if text in ("true", "yes", "on", "1", "false", "no", "off", "0"):
            return text in ("true", "yes", "on", "1")
    elif kind is int and not isinstance(value, bool):
        number = float(value) if not isinstance(value, int) else value
        if abs(number) >= 2**63 and number == number:
            raise _OutOfRange("an integer between -2**63 and 2**63")
        if number == int(number):
            return int(value) if isinstance(value, str) and value.lstrip("+-").isdigit() else int(number)
    elif kind is float and not isinstance(value, bool) and math.isfinite(float(value)):
        return float(value)
    elif kind is str and isinstance(value, str | int | float):
        if not str(value):
            raise _OutOfRange("a string of at least one character")
        return str(value)
    raise ValueError(kind)
