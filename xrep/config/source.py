"""Option classes read from the source text of their modules, so that ``--help`` need not wait for torch."""

from __future__ import annotations

import ast
import builtins
import contextlib
import dataclasses
import functools
import importlib.util
import itertools
import sys
from typing import Any

from xrep.registry import load_target


def option_class(target: str) -> type:
    """Return the dataclass that ``module:Class.Config`` names.

    Importing a part imports torch, which takes seconds. As long as torch has not been imported, the returned class is
    made from the source text instead and has the same fields but no methods. If the text does not show all fields, the
    class is imported.

    Raises:
        UserError: its module cannot be imported or lacks the class.
    """
    if "torch" not in sys.modules:
        # If the class is broken, importing it tells why.
        with contextlib.suppress(LookupError, NameError, TypeError, ValueError, AttributeError):
            return _class_from_text(*target.split(":"))
    return load_target(target)


def class_attribute(target: str, name: str) -> Any:
    """Return an attribute of the class ``module:Class`` whose value is a literal, without importing the class. Raises
    LookupError if neither the class nor a base class assigns such a value."""
    module, _, class_name = target.partition(":")
    node = _class_node(module, class_name)
    for statement in node.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if name in map(ast.unparse, targets):
                return ast.literal_eval(statement.value)
    for base in node.bases:
        with contextlib.suppress(LookupError):
            return class_attribute(":".join(_origin(module, ast.unparse(base))), name)
    raise LookupError(f"{target} has no {name}")


def docstring(target: str) -> str:
    """Return the docstring of the class ``module:Class``, without importing it; empty if it has none."""
    with contextlib.suppress(LookupError):
        return ast.get_docstring(_class_node(*target.split(":"))) or ""
    return ""


def field_docstrings(cls: type) -> dict[str, str]:
    """Return the strings under the fields that a class itself declares, each on one line."""
    helps = {}
    with contextlib.suppress(LookupError):
        for statement, following in itertools.pairwise(_class_node(cls.__module__, cls.__qualname__).body):
            if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
                if isinstance(following.value, ast.Constant) and isinstance(following.value.value, str):
                    helps[ast.unparse(statement.target)] = " ".join(following.value.value.split())
    return helps


def _class_from_text(module: str, name: str) -> type:
    try:
        node = _class_node(module, name)
    except LookupError:  # the outer class inherits it
        outer, _, inner = name.rpartition(".")
        for base in _class_node(module, outer).bases if outer else ():
            with contextlib.suppress(LookupError):
                return _class_from_text(*_origin(module, f"{ast.unparse(base)}.{inner}"))
        raise
    bases = tuple(_class_from_text(*_origin(module, ast.unparse(base))) for base in node.bases)
    fields: list[Any] = []
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign):
            expressions = [statement.annotation, *([statement.value] if statement.value is not None else [])]
            fields.append((ast.unparse(statement.target), *(_evaluate(module, each) for each in expressions)))
    made = dataclasses.make_dataclass(node.name, fields, bases=bases, kw_only=True)
    made.__module__, made.__qualname__ = module, name
    return made


def _evaluate(module: str, expression: ast.expr) -> Any:
    names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)} - set(dir(builtins))
    code = compile(ast.Expression(expression), module, "eval")
    return eval(code, {name: _value(module, name) for name in names})


def _value(module: str, name: str) -> Any:
    """Return the value of a name that a module assigns (``Precision = Literal[...]``) or imports."""
    module, name = _origin(module, name)
    if module in sys.modules:
        return getattr(sys.modules[module], name)
    for statement in _body(module):
        if isinstance(statement, ast.Assign) and name in map(ast.unparse, statement.targets):
            return _evaluate(module, statement.value)
    raise LookupError(name)


def _origin(module: str, name: str) -> tuple[str, str]:
    """Return the module that defines a dotted name and its name there, following ``from ... import ...``."""
    first, dot, rest = name.partition(".")
    for statement in _body(module):
        # torch imports names from itself
        if isinstance(statement, ast.ImportFrom) and statement.module not in (None, module) and not statement.level:
            for alias in statement.names:
                if (alias.asname or alias.name) == first:
                    return _origin(statement.module, alias.name + dot + rest)
    return module, name


def _class_node(module: str, qualified_name: str) -> ast.ClassDef:
    """Return the definition of a class; raise LookupError if the text of the module has none."""
    node: Any = ast.Module(_body(module), [])
    for name in qualified_name.split("."):
        node = next((each for each in node.body if isinstance(each, ast.ClassDef) and each.name == name), None)
        if node is None:
            raise LookupError(f"{module} has no class {qualified_name}")
    return node


@functools.cache
def _body(module: str) -> list[ast.stmt]:
    """Return the statements of a module; none if its source text is missing or not valid Python."""
    try:
        spec = importlib.util.find_spec(module)
        loader: Any = spec.loader if spec else None
        return ast.parse(loader.get_source(module) or "").body
    except (ImportError, SyntaxError, AttributeError, ValueError):
        return []
