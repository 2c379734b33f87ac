"""The options of a part: the fields of the ``Config`` dataclass in its class, and conversion of values to their types.

The string under a field is its help. Fields are read from the source text without importing it, so that ``--help`` need
not wait for torch.
"""

from __future__ import annotations

import ast
import dataclasses
from dataclasses import dataclass
from typing import Any

from xrep.errors import UserError
from xrep.registry import class_node, load_target, module_node


@dataclass(frozen=True)
class FieldSpec:
    """One option: a field of a ``Config`` dataclass as its source text gives it."""

    section: str
    """Where the part is in a configuration: ``criterion``, or ``parts.NAME.criterion``; empty at the top."""
    name: str
    annotation: str
    default: Any
    help: str

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name


def read_fields(section: str, target: str) -> list[FieldSpec]:
    """Return the options of a part, read from its module's source text without running it.

    Base classes of the ``Config`` are read in the same way if the module defines them or imports them by name. If this
    does not find all of them (for example because a class inherits its ``Config``), the class is imported.

    Raises:
        UserError: the module or its class has no readable ``Config``.
    """
    module, _, class_name = target.partition(":")
    read = _read(section, module, f"{class_name}.Config")
    if read is not None:
        return list(read.values())
    config = getattr(load_target(target), "Config", None)
    if not dataclasses.is_dataclass(config):
        raise UserError(f"{target} has no nested dataclass Config", cure="every part declares its options there")
    assert isinstance(config, type)
    fields: dict[str, FieldSpec] = {}
    for base in reversed(config.__mro__[:-1]):
        node = class_node(base.__module__, base.__qualname__)
        fields |= {spec.name: spec for spec in _fields_of(section, node)} if node is not None else {}
    return list(fields.values())


def _read(section: str, module: str, name: str) -> dict[str, FieldSpec] | None:
    """Return the fields of a class and its bases, in the order of a dataclass; None if the text does not show all of
    them."""
    node = class_node(module, name)
    if node is None:
        return None
    fields: dict[str, FieldSpec] = {}
    for base in reversed(node.bases):
        first, _, rest = ast.unparse(base).partition(".")
        place, named = _origin(module, first)
        inherited = _read(section, place, f"{named}.{rest}" if rest else named)
        if inherited is None:
            return None
        fields |= inherited
    return fields | {spec.name: spec for spec in _fields_of(section, node)}


def _origin(module: str, name: str) -> tuple[str, str]:
    """Return the module that a name comes from, and its name there."""
    for statement in module_node(module).body:
        if isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    return statement.module, alias.name
    return module, name


def _fields_of(section: str, node: ast.ClassDef) -> list[FieldSpec]:
    fields = []
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        documentation = following.value if isinstance(following, ast.Expr) else None
        documented = documentation.value if isinstance(documentation, ast.Constant) else None
        text = " ".join(documented.split()) if isinstance(documented, str) else ""
        name = statement.target.id
        try:
            default = _default_of(statement.value)
        except ValueError as error:
            raise UserError(f"the default of {section}.{name} is not a literal", cure="write it out") from error
        fields.append(FieldSpec(section, name, ast.unparse(statement.annotation), default, text))
    return fields


def _default_of(node: ast.expr | None) -> Any:
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("field", "dataclasses.field"):
        for keyword in node.keywords:
            if keyword.arg == "default":
                return ast.literal_eval(keyword.value)
            if keyword.arg == "default_factory":
                if isinstance(keyword.value, ast.Lambda):
                    return ast.literal_eval(keyword.value.body)
                if ast.unparse(keyword.value) == "list":
                    return []
    return dataclasses.MISSING if node is None else ast.literal_eval(node)


def convert(value: Any, annotation: str) -> Any:
    """Convert ``value`` (from a YAML file, or a string from the command line) to the type that the annotation names.

    Raises:
        ValueError: the value is not of that type.
    """
    options = _union(annotation)
    if "None" in options and isinstance(value, str) and value.lower() in ("none", "null"):
        return None
    if value is None and "None" in options:
        return None
    for option in options:
        try:
            return _convert_one(value, option)
        except (ValueError, TypeError, OverflowError):
            continue
    raise ValueError(f"must be {annotation}, not {value!r}")


def _union(annotation: str) -> list[str]:
    node = ast.parse(annotation, mode="eval").body
    parts = []
    while isinstance(node, ast.BinOp):
        parts.append(ast.unparse(node.right))
        node = node.left
    return [ast.unparse(node), *reversed(parts)]


def _convert_one(value: Any, kind: str) -> Any:
    if kind.startswith("Literal["):
        value = "none" if value is None else value  # YAML reads the choice none as None
        for choice in _elements(kind):
            if str(value) == str(ast.literal_eval(choice)):
                return ast.literal_eval(choice)
    elif kind.startswith("list["):
        if isinstance(value, str):
            value = [item.strip() for item in value.strip("[] ").split(",") if item.strip()]
        if isinstance(value, list | tuple):
            return [convert(item, _elements(kind)[0]) for item in value]
    elif kind == "bool":
        text = str(value).lower()
        if text in ("true", "yes", "on", "1", "false", "no", "off", "0"):
            return text in ("true", "yes", "on", "1")
    elif kind == "int" and not isinstance(value, bool):
        number = float(value) if not isinstance(value, int) else value
        if number == int(number):
            return int(value) if isinstance(value, str) and value.lstrip("+-").isdigit() else int(number)
    elif kind == "float" and not isinstance(value, bool):
        return float(value)
    elif kind == "str" and isinstance(value, str | int | float):
        return str(value)
    raise ValueError(kind)


def _elements(kind: str) -> list[str]:
    node = ast.parse(kind, mode="eval").body
    assert isinstance(node, ast.Subscript)
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return [ast.unparse(element) for element in inner]
