"""The options of a part, which are the fields of a dataclass, and conversion of values to their types.

A type may have a range: ``Annotated[float, "(0, 1]"]``. It is checked where a value is converted, and the help says it.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.util
import inspect
import itertools
import math
import re
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from xrep.errors import ConfigError, UserError, shown
from xrep.registry import load_target

Positive = Annotated[float, "(0, inf)"]
NotNegative = Annotated[float, "[0, inf)"]
Share = Annotated[float, "[0, 1]"]
Count = Annotated[int, "[1, inf)"]
CountOrZero = Annotated[int, "[0, inf)"]
Seed = Annotated[int, "[0, 4294967295]"]
"""As numpy and scikit-learn take them."""

TYPE_NAMES = {
    int: "an integer",
    float: "a finite number",
    bool: "true or false",
    str: "a string",
    types.NoneType: "none",
}
PLURALS = {int: "integers", float: "finite numbers", str: "strings"}


@dataclass(frozen=True)
class FieldSpec:
    """One option: a field of a dataclass."""

    section: str
    """Where the part is in a configuration: ``criterion``, or ``parts.NAME.criterion``; empty at the top."""
    name: str
    annotation: Any
    """The field's type, for example ``int | None`` or ``Positive``; ``convert`` takes it with its range."""
    default: Any
    """``dataclasses.MISSING`` if the option must be given."""
    owner: type
    """The class that declares the field."""

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def help(self) -> str:
        """The string under the field, on one line, and the range of its type."""
        text = field_docstrings(self.owner).get(self.name, "")
        ranges = [f"It must {_rule(interval)}." for _, interval in _members(self.annotation) if interval]
        return " ".join([text, *ranges]).strip()


def read_fields(section: str, target: str) -> list[FieldSpec]:
    """Return the options of the dataclass that ``module:Class.Config`` names. Raises UserError if there is none."""
    return fields_of_class(section, load_target(target))


def fields_of_class(section: str, cls: type) -> list[FieldSpec]:
    """Return the options that are the fields of a dataclass and of its bases. Raises UserError if the class is not a
    dataclass."""
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        name = f"{cls.__module__}:{cls.__qualname__}" if isinstance(cls, type) else shown(cls)
        raise UserError(f"{name} is not a dataclass", cure="declare the options of a part in a dataclass")
    hints = _type_hints(cls)
    owners = {name: base for base in reversed(cls.__mro__) for name in inspect.get_annotations(base)}
    specs = []
    for field in dataclasses.fields(cls):
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        specs.append(FieldSpec(section, field.name, hints[field.name], default, owners[field.name]))
    return specs


@functools.cache
def _type_hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def problems_of(options: Any) -> list[str]:
    """Return what is wrong with an instance of a dataclass of options: values that its fields cannot have, and what its
    own ``problems`` returns, if it has that method. Fields that are mappings, or options of another kind, are left
    out."""
    problems = []
    for spec in fields_of_class("", type(options)):
        if any(dataclasses.is_dataclass(kind) or typing.get_origin(kind) is dict for kind in members(spec.annotation)):
            continue
        try:
            convert(getattr(options, spec.name), spec.annotation)
        except ValueError as error:
            problems.append(f"{spec.name} {error}")
    return problems + (options.problems() if hasattr(options, "problems") else [])


def check_options(options: Any) -> None:
    """Raise a ConfigError that names the options which have values that they cannot have; see ``problems_of``."""
    if problems := problems_of(options):
        raise ConfigError([re.sub(r"^\w+", r"`\g<0>`", problem) for problem in problems])


# -- values ---------------------------------------------------------------------------------------------------------


def convert(value: Any, annotation: Any) -> Any:
    """Convert ``value`` (from a YAML file, or a string from the command line) to a type. Raises ValueError if the value
    is not of that type, or is not in its range. A number is no text: YAML has read 1.10 as 1.1 and 010 as 8."""
    if types.NoneType in members(annotation):
        if value is None or isinstance(value, str) and value.lower() in ("none", "null"):
            return None
    refused = ""
    for kind, interval in _members(annotation):
        try:
            converted = _convert_one(value, kind)
        except OverflowError:
            refused = f"be between -2**63 and 2**63, not {shown(value)}"
            continue
        except (ValueError, TypeError):
            continue
        numbers = converted if isinstance(converted, list) else [converted]
        if not interval or all(_lies_in(number, interval) for number in numbers):
            return converted
        refused = f"{_rule(interval)}, not {converted}"
    is_text = not {str, list[str]}.isdisjoint(members(annotation))
    unquoted = is_text and any(
        isinstance(each, int | float) for each in (value if isinstance(value, list) else [value])
    )
    cure = "; put it in quotes" if unquoted else ""
    raise ValueError(f"must {refused or f'be {type_in_words(annotation)}, not {shown(value)}{cure}'}")


def choices(annotation: Any) -> list[Any]:
    """Return the values that a ``Literal``, or a union with one, allows; empty for other types."""
    literals = [member for member in members(annotation) if typing.get_origin(member) is Literal]
    return list(dict.fromkeys(choice for literal in literals for choice in typing.get_args(literal)))


def type_in_words(annotation: Any) -> str:
    """Return a type in words: "an integer or none", "weight or proportion"."""
    allowed = [str(choice) for choice in choices(annotation)]
    for member in members(annotation):
        if typing.get_origin(member) is list:
            (item,) = typing.get_args(member)
            allowed.append(f"a list of {PLURALS.get(item) or type_in_words(item)}")
        elif typing.get_origin(member) is not Literal:
            allowed.append(TYPE_NAMES.get(member, str(member)))
    return " or ".join([", ".join(allowed[:-1])] * (len(allowed) > 1) + allowed[-1:])


def members(annotation: Any) -> tuple[Any, ...]:
    """Return the types of a union; for any other type, the type alone; always without ranges."""
    return tuple(kind for kind, _ in _members(annotation))


def _members(annotation: Any) -> list[tuple[Any, str]]:
    """Return the types of a union with the range of each; empty if it has none."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    kinds = typing.get_args(annotation) if is_union else (annotation,)
    parts = [typing.get_args(kind) if typing.get_origin(kind) is Annotated else (kind,) for kind in kinds]
    return [(kind, next((text for text in more if isinstance(text, str)), "")) for kind, *more in parts]


def _lies_in(value: float, interval: str) -> bool:
    low, high = map(float, interval[1:-1].split(", "))
    return low < value < high or (value == low and interval[0] == "[") or (value == high and interval[-1] == "]")


def _rule(interval: str) -> str:
    low, high = interval[1:-1].split(", ")
    if high != "inf":
        return f"lie in {interval}"
    return f"be {'at least' if interval[0] == '[' else 'above'} {low}"


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
        number = int(value) if isinstance(value, str) and value.lstrip("+-").isdigit() else value
        whole = number if isinstance(number, int) else int(float(number))
        if abs(whole) >= 2**63:
            raise OverflowError
        if float(whole) == float(number):
            return whole
    elif kind is float and not isinstance(value, bool) and math.isfinite(float(value)):
        return float(value)
    elif kind is str and isinstance(value, str) and value:
        return value
    raise ValueError(kind)


# -- texts ----------------------------------------------------------------------------------------------------------


def docstring(target: str) -> str:
    """Return the docstring of the class ``module:Class``, without importing it; empty if it has none."""
    return ast.get_docstring(_class_node(*target.split(":"))) or ""


@functools.cache
def field_docstrings(cls: type) -> dict[str, str]:
    """Return the strings under the fields that a class itself declares, each on one line."""
    helps = {}
    for statement, following in itertools.pairwise(_class_node(cls.__module__, cls.__qualname__).body):
        if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
            if isinstance(following.value, ast.Constant) and isinstance(following.value.value, str):
                helps[ast.unparse(statement.target)] = " ".join(following.value.value.split())
    return helps


def _class_node(module: str, qualified_name: str) -> ast.ClassDef | ast.Module:
    """Return the definition of a class; an empty module if the text of the module has none."""
    node = _parsed(module)
    for name in qualified_name.split("."):
        classes = (each for each in node.body if isinstance(each, ast.ClassDef) and each.name == name)
        node = next(classes, ast.Module([], []))
    return node


@functools.cache
def _parsed(module: str) -> ast.ClassDef | ast.Module:
    """Return the source text of a module, parsed; no statements if the text is missing or not valid Python."""
    try:
        spec: Any = importlib.util.find_spec(module)  # of ``__main__`` that of the module which is run
        return ast.parse(spec.loader.get_source(spec.name) or "")
    except (ImportError, SyntaxError, AttributeError, ValueError):
        return ast.Module([], [])
